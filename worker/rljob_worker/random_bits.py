"""Random numbers that are functions of what they are for, not of who draws them or in which order."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_UINT64 = (1 << 64) - 1
_GOLDEN, _FIRST, _SECOND = (np.uint64(item) for item in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_27, _30, _31 = (np.uint64(item) for item in (27, 30, 31))


def random_bits(seed: int, row_ids: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.uint64]:
    """64 bits per (seed, row_id, position): splitmix64 over the three. Steele, Lea & Flood 2014, "Fast splittable
    pseudorandom number generators"."""
    return bits_at(random_streams(seed, row_ids), positions)


def random_streams(seed: int, row_ids: NDArray[np.int64]) -> NDArray[np.uint64]:
    """What of `random_bits` is the same at every position of a row."""
    return _mix(_mixed(seed) ^ row_ids.astype(np.uint64))


def bits_at(streams: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.uint64]:
    """`random_bits` of rows whose streams are known."""
    return _mix(streams ^ positions.astype(np.uint64))


@lru_cache(16)  # a run has few, an engine that serves others may be asked for any number
def _mixed(seed: int) -> NDArray[np.uint64]:
    return _mix(np.array([seed & _UINT64], np.uint64))


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """One splitmix64 output per uint64; arithmetic wraps. In place: a decoding step calls it for few rows, for which
    the number of calls to numpy is what it costs."""
    z = state + _GOLDEN
    z ^= z >> _30
    z *= _FIRST
    z ^= z >> _27
    z *= _SECOND
    z ^= z >> _31
    return z
