"""What a benchmark measured, beside its limits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """One number, and what it is held to."""

    name: str
    value: float
    least: float = -math.inf
    most: float = math.inf

    def missed(self) -> str | None:
        """Says by how much it misses its limit; None where it does not."""
        if self.least <= self.value <= self.most:
            return None
        limit = f"at least {self.least:g}" if self.value < self.least else f"at most {self.most:g}"
        return f"missed: {self.name}: {self.value:.3g}, where it is to be {limit}"


def exit_code(figures: Sequence[Figure]) -> int:
    """Prints every limit that is missed; 1 where one is."""
    missed = [message for figure in figures if (message := figure.missed())]
    print("\n".join(missed) or f"{len(figures)} figures meet their limits")
    return 1 if missed else 0
