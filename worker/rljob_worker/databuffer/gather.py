"""Copy rows between columns: stretches of neighbouring rows as one slice each, no index array as large as the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rljob_worker.batch import Column, offsets_of

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Rows to copy, [rows] on either side, and the positions of the first and last row of every stretch.

    A stretch goes on row by row on both sides. It is the same for all columns, hence worked out once.
    """

    source: Int64
    target: Int64
    firsts: Int64
    lasts: Int64

    @staticmethod
    def of(source: Int64, target: Int64) -> Runs:
        """Copy row `source[i]` to row `target[i]`."""
        if len(source) == 0:
            return Runs(source, target, source, source)
        goes_on = (source[1:] == source[:-1] + 1) & (target[1:] == target[:-1] + 1)
        breaks = np.flatnonzero(~goes_on)
        firsts, lasts = np.zeros(len(breaks) + 1, np.int64), np.full(len(breaks) + 1, len(source) - 1)
        firsts[1:], lasts[:-1] = breaks + 1, breaks
        return Runs(source, target, firsts, lasts)


def take_rows(columns: Mapping[str, Column], rows: Int64) -> dict[str, Column]:
    """The rows at `rows` of every column; views when they are neighbours, else one gather."""
    runs = Runs.of(rows, np.arange(len(rows)))
    if len(runs.firsts) <= 1:
        first = int(rows[0]) if len(rows) else 0
        return {name: _slice(column, first, first + len(rows)) for name, column in columns.items()}
    return {name: _gather(column, runs) for name, column in columns.items()}


def copy_rows(target: Column, source: Column, runs: Runs) -> None:
    """Write rows of `source` into rows of `target`, whose offsets are already right."""
    if source.offsets is None or target.offsets is None:
        if len(runs.firsts) == 1:
            count, to, begin = len(runs.source), runs.target[0], runs.source[0]
            target.values[to : to + count] = source.values[begin : begin + count]
        else:
            target.values[runs.target] = source.values[runs.source]
        return
    to = target.offsets[runs.target[runs.firsts]].tolist()
    begin = source.offsets[runs.source[runs.firsts]].tolist()
    end = source.offsets[runs.source[runs.lasts] + 1].tolist()
    for destination, first, last in zip(to, begin, end, strict=True):
        target.values[destination : destination + last - first] = source.values[first:last]


def _slice(column: Column, first: int, last: int) -> Column:
    if column.offsets is None:
        return Column(column.values[first:last], None, column.dtype)
    offsets = column.offsets[first : last + 1]
    return Column(column.values[offsets[0] : offsets[-1]], offsets - offsets[0], column.dtype)


def _gather(column: Column, runs: Runs) -> Column:
    if column.offsets is None:
        return Column(column.values[runs.source], None, column.dtype)
    offsets = offsets_of(column.lengths[runs.source])
    values = np.empty((int(offsets[-1]), *column.values.shape[1:]), column.values.dtype)
    gathered = Column(values, offsets, column.dtype)
    copy_rows(gathered, column, runs)
    return gathered
