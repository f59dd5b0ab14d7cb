"""Which tokens of a pack see which, in tiles of queries and keys. Pure.

A row is its prompt and its response, and rows of one prompt follow it, one after another (see `packing`). So a token is
seen by all that come at it or later, up to the end of the last row that it is in:

    tokens   p0 p1 a  b  d        of the rows p0 p1 a b and p0 p1 d
    ends      5  5 4  4  5        d is at 4: it sees p0 and p1, and neither a nor b

Tokens are dealt out to ranks in turn, as Brandon et al. do it (Striped Attention, https://arxiv.org/abs/2311.09431):
every rank then has as many tokens of each row, early and late ones, and as much to compute with the keys of any rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rljob_worker.batch import Indices
from rljob_worker.batch.gather import offsets_of
from rljob_worker.engines.packing import PackedRows

LENGTH = 512
"""Queries, and keys, of a tile: its scores are LENGTH^2 numbers per head."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Some tokens of a pack, in its order."""

    places: Indices
    """[tokens] where each is in the pack, ascending."""
    ends: Indices
    """[tokens] the first place after it that does not see it."""
    positions: Indices
    """[tokens] in its row."""

    @staticmethod
    def of(rows: PackedRows, num_tokens: int) -> Tokens:
        """All of them, and pads after them that see themselves alone."""
        places = np.arange(num_tokens)
        ends, positions = places + 1, np.zeros(num_tokens, np.int64)
        last = rows.sequences[offsets_of(rows.sequence_lengths)[1:] - 1]
        np.maximum.at(ends, rows.sequences, np.repeat(last + 1, rows.sequence_lengths))
        positions[: len(rows.places)] = rows.places
        return Tokens(places, ends, positions)

    def dealt(self, rank: int, size: int) -> Tokens:
        """Every `size`-th, beginning with the one at `rank`."""
        return Tokens(*(item[rank::size] for item in (self.places, self.ends, self.positions)))


@dataclass(frozen=True, slots=True)
class Tile:
    """Queries that may see some of these keys."""

    queries: slice
    keys: slice
    sees_all: bool
    """Every query every key."""


def tiles(queries: Tokens, keys: Tokens, window: int | None, length: int = LENGTH) -> Iterator[Tile]:
    """All of them in which anything is seen. window: how many last tokens of its row that a query sees.

    A tile is judged by the least and the largest of what its tokens have; some are kept in which, on a closer look,
    nothing is seen.
    """
    (q_first, q_last), (q_low, q_high) = (_range(item, length) for item in (queries.places, queries.positions))
    (k_first, k_last), (k_low, k_high) = (_range(item, length) for item in (keys.places, keys.positions))
    end_first, end_last = _range(keys.ends, length)
    some = (k_first <= q_last[:, None]) & (end_last > q_first[:, None])
    every = (k_last <= q_first[:, None]) & (end_first > q_last[:, None])
    if window is not None:
        some &= q_low[:, None] - k_high < window
        every &= q_high[:, None] - k_low < window
    for row, column in np.argwhere(some).tolist():
        yield Tile(_slice(row, length, queries), _slice(column, length, keys), bool(every[row, column]))


def _range(values: Indices, length: int) -> tuple[Indices, Indices]:
    """The least and the largest of each tile."""
    starts = np.arange(0, len(values), length)
    return np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)


def _slice(index: int, length: int, tokens: Tokens) -> slice:
    return slice(index * length, min((index + 1) * length, len(tokens.places)))
