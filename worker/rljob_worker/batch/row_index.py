"""Which rows: the three numbers that every row has on every edge, however its columns look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rljob_worker.batch.gather import Runs

Int64 = NDArray[np.int64]

INDEX_COLUMNS = ("row_id", "group_id", "num_tokens")
"""Their names in Arrow tables, in this order."""


@dataclass(frozen=True, slots=True, eq=False)
class RowIndex:
    """row_ids, group_ids, num_tokens: int64 [rows] each, in any order of the rows.

    num_tokens is prompt plus response, 0 before rollout.
    """

    row_ids: Int64
    group_ids: Int64
    num_tokens: Int64

    @staticmethod
    def concat(parts: Sequence[RowIndex]) -> RowIndex:
        """Rows of several indices, one after the other."""
        return RowIndex(
            np.concatenate([part.row_ids for part in parts]),
            np.concatenate([part.group_ids for part in parts]),
            np.concatenate([part.num_tokens for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.row_ids)

    def take(self, rows: Int64) -> RowIndex:
        """The rows at positions `rows`, copied."""
        return RowIndex(self.row_ids[rows], self.group_ids[rows], self.num_tokens[rows])

    def within(self, first: int, stop: int) -> RowIndex:
        """Rows [first, stop), over the same memory."""
        return RowIndex(self.row_ids[first:stop], self.group_ids[first:stop], self.num_tokens[first:stop])

    def order(self) -> Int64:
        """Positions of the rows in ascending row_id; rows that come twice stay in their order."""
        return np.argsort(self.row_ids, kind="stable")

    @staticmethod
    def targets_of(order: Int64, sizes: Sequence[int]) -> list[Int64]:
        """Where rows of several sources, one after the other, lie after `order`: per source, the place of each row.

        order: positions as `order()` gives them, [sum(sizes)].   sizes: rows of each source.
        """
        position = np.empty(len(order), np.int64)
        position[order] = np.arange(len(order))
        return np.split(position, np.cumsum(sizes)[:-1])

    def heads(self) -> Int64:
        """For every row the position of the first row of its group, where the group's own columns lie: [rows]."""
        firsts = _first_of_each(self.group_ids)
        order = np.argsort(self.group_ids[firsts])
        return firsts[order][np.searchsorted(self.group_ids[firsts], self.group_ids, sorter=order)]

    def head_of(self, rows: Int64) -> Int64:
        """Positions of the first row of the groups of some rows."""
        if _ascend(self.group_ids):
            return np.searchsorted(self.group_ids, self.group_ids[rows])
        return self.heads()[rows]

    def group_runs(self, rows: Int64) -> Runs:
        """Each group of `rows` once: from the group's head here to the first of `rows` that belongs to it."""
        first = _first_of_each(self.group_ids[rows])
        return Runs.of(self.head_of(rows[first]), first)

    def merged_groups(self, parts: Sequence[RowIndex], targets: Sequence[Int64]) -> list[Runs]:
        """Each group once, from the first of `parts` that has it, to its head here.

        targets: where each part's rows lie here, as `targets_of` says.
        """
        heads, is_filled = self.heads(), np.zeros(len(self), bool)
        runs = []
        for part, target in zip(parts, targets, strict=True):
            source = np.unique(part.heads())
            to = heads[target[source]]
            new = ~is_filled[to]
            is_filled[to] = True
            runs.append(Runs.of(source[new], to[new]))
        return runs

    def columns(self) -> dict[str, Int64]:
        """By their names in Arrow tables."""
        return dict(zip(INDEX_COLUMNS, (self.row_ids, self.group_ids, self.num_tokens), strict=True))


def _first_of_each(ids: Int64) -> Int64:
    """Positions at which an id appears for the first time, ascending."""
    if _ascend(ids):
        return np.flatnonzero(np.diff(ids, prepend=ids[:1] - 1))
    return np.sort(np.unique(ids, return_index=True)[1])


def _ascend(ids: Int64) -> bool:
    """As the groups of rows by row_id do."""
    return bool((ids[1:] >= ids[:-1]).all())


def row_number(row_id: int) -> int:
    """Its number in the job, from 1, where its id counts from 0."""
    return int(row_id) + 1
