"""Copy rows between columns, given as values and offsets. The one gather there is: takes, merges, and rows on the wire.

Long rows go as slices, a stretch of neighbouring rows as one, without an index array as large as the data; many short
stretches go through one index array, which costs more for each value and nothing for each row.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]
Int64 = NDArray[np.int64]

SHORT_VALUES = 64
"""Mean length of a stretch below which an index array is faster than a slice for each."""


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

    @staticmethod
    def taking(rows: Int64) -> Runs:
        """Copy row `rows[i]` to row i."""
        return Runs.of(rows, np.arange(len(rows)))

    @property
    def is_one(self) -> bool:
        """Whether the rows are neighbours on both sides; no rows at all are."""
        return len(self.firsts) <= 1


def copy_rows(
    target: Array, target_offsets: Int64 | None, source: Array, source_offsets: Int64 | None, runs: Runs
) -> None:
    """Write rows of a source into rows of a target.

    values: [rows, ...] with offsets None, else [values, ...] in runs as the offsets [rows + 1] say; those of the
    target are already right.
    """
    if source_offsets is None or target_offsets is None:
        if runs.is_one and len(runs.source):
            at, first, count = runs.target[0], runs.source[0], len(runs.source)
            target[at : at + count] = source[first : first + count]
        else:
            target[runs.target] = source[runs.source]
        return
    Stretches.of(target_offsets, source_offsets, runs).copy(target, source)


class Stretches:
    """Where runs of values lie and where they go, int64 [stretches]: the same for all columns of rows as long."""

    def __init__(self, begin: Int64, to: Int64, lengths: Int64) -> None:
        self._begin, self._to, self._lengths = begin, to, lengths
        self._are_short = len(lengths) > 1 and bool(lengths.sum() < SHORT_VALUES * len(lengths))

    @staticmethod
    def of(target_offsets: Int64 | None, source_offsets: Int64 | None, runs: Runs) -> Stretches:
        """Without offsets a row is one value."""
        if target_offsets is None or source_offsets is None:
            return Stretches(runs.source[runs.firsts], runs.target[runs.firsts], runs.lasts - runs.firsts + 1)
        begin = source_offsets[runs.source[runs.firsts]]
        lengths = source_offsets[runs.source[runs.lasts] + 1] - begin
        return Stretches(begin, target_offsets[runs.target[runs.firsts]], lengths)

    def of_source(self, first: int, stop: int) -> Stretches:
        """Those of values [first, stop) of the source, counted from there; all together leave no gap in it."""
        begin, to, lengths = _within(self._begin, self._to, self._lengths, first, stop)
        return Stretches(begin, to, lengths)

    def of_target(self, first: int, stop: int) -> Stretches:
        """Those of values [first, stop) of the target, counted from there; all together leave no gap in it."""
        to, begin, lengths = _within(self._to, self._begin, self._lengths, first, stop)
        return Stretches(begin, to, lengths)

    def copy(self, target: Array, source: Array) -> None:
        """Write the values of `source` to their places in `target`, both [values, ...]."""
        if self._are_short:
            self._copy_short(target, source)
            return
        for at, first, length in zip(self._to.tolist(), self._begin.tolist(), self._lengths.tolist(), strict=True):
            target[at : at + length] = source[first : first + length]

    def _copy_short(self, target: Array, source: Array) -> None:
        """Stretches by index, on the side where they do not follow each other anyway."""
        begin, to = self._from, self._into
        if isinstance(to, slice) and not isinstance(begin, slice):
            np.take(source, begin, axis=0, out=target[to], mode="clip")  # "raise" would copy once more
        else:
            target[to] = source[begin]

    @functools.cached_property
    def as_one(self) -> slice | None:
        """What is copied as a slice of the source, if nothing else lies between."""
        return _as_slice(self._begin, self._lengths)

    @functools.cached_property
    def _from(self) -> Int64 | slice:
        return _positions(self._begin, self._lengths) if self.as_one is None else self.as_one

    @functools.cached_property
    def _as_one_target(self) -> slice | None:
        return _as_slice(self._to, self._lengths)

    @functools.cached_property
    def _into(self) -> Int64 | slice:
        return _positions(self._to, self._lengths) if self._as_one_target is None else self._as_one_target


def take_rows(
    values: Array, offsets: Int64 | None, runs: Runs, num_rows: int, *, may_view: bool = False
) -> tuple[Array, Int64 | None]:
    """Rows `runs.source` as rows `runs.target` (ascending) of `num_rows`, and their offsets; the other rows are empty.

    In new memory; with `may_view` over the same memory where what is taken lies there as one piece.
    """
    if offsets is None:
        assert len(runs.source) == num_rows, "a fixed column has no empty rows"
        if may_view and runs.is_one:
            first = runs.source[0] if num_rows else 0
            return values[first : first + num_rows], None
        return values[runs.source], None
    taking = Taking.of(offsets, runs, num_rows)
    return taking.values(values, may_view=may_view), taking.offsets


@dataclass(frozen=True, slots=True, eq=False)
class Taking:
    """Rows taken from a column: the same for all columns of rows as long."""

    offsets: Int64 | None
    """Offsets of the rows that are taken; None where a row is one value."""
    num_values: int
    stretches: Stretches

    @staticmethod
    def of(offsets: Int64 | None, runs: Runs, num_rows: int) -> Taking:
        """Rows `runs.source` as rows `runs.target` (ascending) of `num_rows`; the other rows are empty."""
        if offsets is None:
            return Taking(None, num_rows, Stretches.of(None, None, runs))
        lengths = np.zeros(num_rows, np.int64)
        lengths[runs.target] = offsets[runs.source + 1] - offsets[runs.source]
        taken = offsets_of(lengths)
        return Taking(taken, int(taken[-1]), Stretches.of(taken, offsets, runs))

    def within(self, first: int, stop: int) -> Taking:
        """Rows [first, stop) of those that are taken."""
        if self.offsets is None:
            return Taking(None, stop - first, self.stretches.of_target(first, stop))
        begin, end = int(self.offsets[first]), int(self.offsets[stop])
        return Taking(self.offsets[first : stop + 1] - begin, end - begin, self.stretches.of_target(begin, end))

    def values(self, values: Array, *, may_view: bool = False) -> Array:
        """What the rows hold of [values, ...]; with `may_view` over the same memory where it is one piece there."""
        if may_view and (piece := self.stretches.as_one) is not None:
            return values[piece]
        into = np.empty((self.num_values, *values.shape[1:]), values.dtype)
        self.stretches.copy(into, values)
        return into


def offsets_of(lengths: ArrayLike) -> Int64:
    """Where each run starts: int64 [rows + 1], first 0, last the number of values."""
    lengths = np.asarray(lengths, np.int64)
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _within(along: Int64, across: Int64, lengths: Int64, first: int, stop: int) -> tuple[Int64, Int64, Int64]:
    """The stretches between two positions of one side, `along`, where they ascend without gaps: the outer ones cut."""
    cut = slice(max(0, int(np.searchsorted(along, first, "right")) - 1), int(np.searchsorted(along, stop, "left")))
    along, across, lengths = along[cut] - first, across[cut].copy(), lengths[cut].copy()
    if len(along):
        skipped = along[0]
        along[0], across[0], lengths[0] = 0, across[0] - skipped, lengths[0] + skipped
        lengths[-1] = stop - first - along[-1]
    return along, across, lengths


def _as_slice(starts: Int64, lengths: Int64) -> slice | None:
    """Some runs as one, if every run starts where the one before ends."""
    if not len(starts):
        return slice(0)
    if not (starts[1:] == starts[:-1] + lengths[:-1]).all():
        return None
    return slice(int(starts[0]), int(starts[-1] + lengths[-1]))


def _positions(starts: Int64, lengths: Int64) -> Int64:
    """start, start + 1, … of every run, one after the other."""
    offsets = offsets_of(lengths)
    return np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
