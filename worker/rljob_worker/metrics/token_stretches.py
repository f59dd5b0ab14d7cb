"""Which weights drew which tokens of a response, in words."""

from __future__ import annotations

from collections.abc import Sequence


def stretches_text(versions: Sequence[Sequence[int]]) -> str:
    """`weights of step 3, from token 513 on of step 4`. versions: of each stretch of tokens its first, counted from 0,
    and the step that left its weights behind: `[[0, 3], [512, 4]]`. 0 is no step, but the weights of the start."""
    steps = [(first, f"of step {version}" if version else "of the start") for first, version in versions]
    return ", ".join(f"from token {first + 1} on {text}" if first else f"weights {text}" for first, text in steps)
