"""Which data-set row is the n-th prompt of the job: a block shuffle that is a formula, with nothing to store.

A job's prompts are numbered by *ordinal*, from 0 without end; epoch = ordinal // num_rows. In an epoch the blocks of
rows are permuted, and the rows of each block, both by (seed, epoch):

    6 rows, blocks of 2:   blocks 0 1 2 -> 2 0 1     rows 4 5 | 0 1 | 2 3 -> 5 4 | 0 1 | 3 2

The next ordinal is the whole state of the data: any rank, of any number of ranks, can read any ordinal at any time. A
batch may hold the end of one epoch and the start of the next; no row is lost or repeated within an epoch.

The permutation is a Feistel network on the least even number of bits that holds the rows, walked until it lands inside
(Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002, https://web.cs.ucdavis.edu/~rogaway/papers/subset.pdf).
Unlike a stored shuffle it needs no memory per row, and unlike numpy's generators it never changes between versions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Indices = NDArray[np.int64]
_Words = NDArray[np.uint64]

_ROUNDS = 8
_LEAST_HALF_BITS = 3
"""A network of fewer bits reaches few of the possible permutations."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class Order:
    """The rows of the data set in the order of the job.

    seed: None reads in order.   block_rows: 1 permutes single rows; larger blocks keep neighbours close, for storage
    that reads runs of rows faster.
    """

    num_rows: int
    seed: int | None
    block_rows: int = 1

    def __post_init__(self) -> None:
        assert self.num_rows >= 1 and self.block_rows >= 1, "an order needs rows"

    def index_of(self, ordinals: ArrayLike) -> Indices:
        """The rows of these ordinals: int64 [n] -> int64 [n]."""
        ordinal = np.asarray(ordinals, np.int64).reshape(-1)
        assert not (ordinal < 0).any(), "ordinals count from 0"
        epoch, position = np.divmod(ordinal, self.num_rows)
        if self.seed is None:
            return position
        return self._shuffled(position, _mix(_word(self.seed), epoch.astype(np.uint64)))

    def _shuffled(self, position: Indices, key: _Words) -> Indices:
        """The row at each position of an epoch. The rows that fill no whole block stay a short last block."""
        whole = self.num_rows // self.block_rows
        tail = self.num_rows % self.block_rows
        slot, within = np.divmod(position, self.block_rows)
        sizes = np.where(slot < whole, self.block_rows, max(tail, 1)).astype(np.uint64)
        block = np.where(slot < whole, _permute(slot, np.full(len(slot), max(whole, 1), np.uint64), key), slot)
        return block * self.block_rows + _permute(within, sizes, _mix(key, block.astype(np.uint64)))


def _permute(index: Indices, size: _Words, key: _Words) -> Indices:
    """Where a keyed permutation of [0, size) sends each index: all [n], a size and a key each. An index beyond its size
    stays."""
    out = index.astype(np.uint64)
    todo = np.flatnonzero((out < size) & (size > 1))
    half = np.maximum(_half_bits(size), _LEAST_HALF_BITS).astype(np.uint64)
    while len(todo):
        out[todo] = _feistel(out[todo], half[todo], key[todo])
        todo = todo[out[todo] >= size[todo]]  # landed outside: walk on, which ends since the network is a permutation
    return out.astype(np.int64)


def _feistel(value: _Words, half_bits: _Words, key: _Words) -> _Words:
    """A keyed permutation of [0, 4 ** half_bits)."""
    low = (np.uint64(1) << half_bits) - np.uint64(1)
    left, right = value >> half_bits, value & low
    for turn in range(_ROUNDS):
        left, right = right, left ^ (_mix(key + np.uint64(turn), right) & low)
    return (left << half_bits) | right


def _half_bits(size: _Words) -> Indices:
    """The least h with 4 ** h >= size."""
    bits = np.frexp((size - np.uint64(1)).astype(np.float64))[1]  # the bit length of size - 1, for sizes below 2 ** 53
    return (np.maximum(bits, 0) + 1) // 2


def _mix(key: _Words | np.uint64, value: _Words) -> _Words:
    """A well-mixed word of two words (the finalizer of SplitMix64, https://doi.org/10.1145/2714064.2660195)."""
    with np.errstate(over="ignore"):
        word = key + (value + np.uint64(1)) * _GOLDEN
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return word ^ (word >> np.uint64(31))


def _word(seed: int) -> np.uint64:
    return np.uint64(seed % (1 << 64))
