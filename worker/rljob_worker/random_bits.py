"""Random numbers that are functions of what they are for, not of who draws them or in which order."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_GOLDEN = 0x9E3779B97F4A7C15
_UINT64 = (1 << 64) - 1


def random_bits(seed: int, row_ids: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.uint64]:
    """64 bits per (seed, row_id, position): splitmix64 over the three. Steele, Lea & Flood 2014, "Fast splittable
    pseudorandom number generators"."""
    state = _mix(np.array([seed & _UINT64], np.uint64))
    return _mix(_mix(state ^ row_ids.astype(np.uint64)) ^ positions.astype(np.uint64))


def _mix(state: NDArray[np.uint64]) -> NDArray[Any]:
    """One splitmix64 output per uint64; arithmetic wraps."""
    z = state + np.uint64(_GOLDEN)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
