"""Copy rows between columns: runs of neighbouring rows as one slice each, no index array as large as the data."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rljob_worker.batch import Column, offsets_of

Int64 = NDArray[np.int64]


def take_rows(column: Column, rows: Int64) -> Column:
    """The rows at `rows`; a view when they are neighbours, else one gather."""
    if len(rows) == 0 or _is_range(rows):
        first = int(rows[0]) if len(rows) else 0
        return slice_rows(column, first, first + len(rows))
    if column.offsets is None:
        return Column(column.values[rows], None, column.dtype)
    offsets = offsets_of(column.lengths[rows])
    values = np.empty((int(offsets[-1]), *column.values.shape[1:]), column.values.dtype)
    gathered = Column(values, offsets, column.dtype)
    copy_rows(gathered, np.arange(len(rows)), column, rows)
    return gathered


def slice_rows(column: Column, first: int, last: int) -> Column:
    """Rows [first, last) as a view."""
    if column.offsets is None:
        return Column(column.values[first:last], None, column.dtype)
    offsets = column.offsets[first : last + 1]
    return Column(column.values[offsets[0] : offsets[-1]], offsets - offsets[0], column.dtype)


def copy_rows(target: Column, target_rows: Int64, source: Column, source_rows: Int64) -> None:
    """Write rows `source_rows` of `source` into rows `target_rows` of `target`, whose offsets are already right."""
    if source.offsets is None or target.offsets is None:
        if _is_range(source_rows) and _is_range(target_rows):
            count = len(source_rows)
            target.values[target_rows[0] : target_rows[0] + count] = source.values[
                source_rows[0] : source_rows[0] + count
            ]
        else:
            target.values[target_rows] = source.values[source_rows]
        return
    starts, stops = _runs(source_rows, target_rows)
    to = target.offsets[target_rows[starts]].tolist()
    begin = source.offsets[source_rows[starts]].tolist()
    end = source.offsets[source_rows[stops] + 1].tolist()
    for destination, first, last in zip(to, begin, end, strict=True):
        target.values[destination : destination + last - first] = source.values[first:last]


def _is_range(rows: Int64) -> bool:
    return len(rows) > 0 and bool(rows[-1] - rows[0] == len(rows) - 1) and bool((np.diff(rows) == 1).all())


def _runs(source_rows: Int64, target_rows: Int64) -> tuple[Int64, Int64]:
    """First and last position of every stretch in which both sides go on row by row."""
    if len(source_rows) == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    breaks = np.flatnonzero((np.diff(source_rows) != 1) | (np.diff(target_rows) != 1))
    return np.concatenate(([0], breaks + 1)), np.concatenate((breaks, [len(source_rows) - 1]))
