"""Which mutants are tried: those on changed lines first, then by lot."""

from __future__ import annotations

import hashlib
from collections.abc import Collection

from mutation.mutants import Mutant


def sample(mutants: list[Mutant], count: int, seed: int, changed_lines: Collection[int]) -> list[Mutant]:
    """`count` mutants in source order, or all there are.

    A mutant draws its own lot from seed and name, so a line that is added leaves the choice of others alone.
    """
    drawn = sorted(mutants, key=lambda item: (item.line_number not in changed_lines, _lot(item, seed)))
    chosen = {item.key for item in drawn[:count]}
    return [mutant for mutant in mutants if mutant.key in chosen]


def _lot(mutant: Mutant, seed: int) -> bytes:
    return hashlib.sha256(repr((seed, mutant.key)).encode()).digest()
