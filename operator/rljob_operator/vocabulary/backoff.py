"""`Backoff`: exponential backoff with jitter between failures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Backoff:
    """first · 2^(failures - 1), at most `last_seconds`, shortened at random by up to half, so that many who failed at
    once do not return at once."""

    first_seconds: float
    last_seconds: float

    def seconds(self, num_failures: int, chance: float) -> float:
        """The pause after the `num_failures`-th failure in a row, counted from 1; `chance` is in [0, 1)."""
        doublings = min(num_failures - 1, 32)
        return min(self.first_seconds * 2.0**doublings, self.last_seconds) * (1.0 - chance / 2)
