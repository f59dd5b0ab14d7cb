"""Memory of generation while the same process trains: engines sleep between the two where it is worth it."""

from __future__ import annotations

from collections.abc import Iterable

from rljob_worker.engines.rollout.protocol import Depth, RolloutEngine

_LEAST_BYTES = 64 << 20
"""What is given back has to be taken again: a quarter of a second for each GiB of pages on a CPU. Less than this is no
help to training."""


def is_worth_sleeping(num_bytes: int) -> bool:
    """Whether to give so much back and to take it again in the next step."""
    return num_bytes >= _LEAST_BYTES


def end_generation(engines: Iterable[RolloutEngine], *, gets_weights: bool) -> None:
    """Let engines sleep that have generated. gets_weights: new ones come before they generate again, so that their own
    copy of them is not needed. After a validation nobody sleeps: what follows it generates."""
    depth: Depth = "Weights" if gets_weights else "Cache"
    for engine in engines:
        if is_worth_sleeping(engine.held_bytes(depth)):
            engine.sleep(depth)
