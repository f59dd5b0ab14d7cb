"""How rows of several sources come to lie in one segment: pure arithmetic on their headers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rljob_worker.arrow_table import table_from_bytes, table_to_bytes
from rljob_worker.batch import Batch, Column
from rljob_worker.databuffer.protocol.errors import Bug
from rljob_worker.databuffer.rows.schema import Kind, kind_of
from rljob_worker.databuffer.rows.segment import Contents, Views, plan_contents
from rljob_worker.errors import BadData
from rljob_worker.gather import Runs, Stretches, copy_rows, offsets_of
from rljob_worker.row_index import INDEX_COLUMNS, RowIndex

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Header:
    """What a source is about to send: its rows, and how long each is in every ragged column.

    What is stored per group is sent with the first row of the group that a part sends: the others have length 0.
    """

    index: RowIndex
    lengths: dict[str, Int64]
    kinds: dict[str, Kind]

    @staticmethod
    def of(views: Views, rows: Int64) -> Header:
        """Header of the rows at positions `rows` of a segment."""
        lengths = {}
        for name, column in views.columns.items():
            if column.per_group:
                groups = views.index.group_runs(rows)
                lengths[name] = np.zeros(len(rows), np.int64)
                lengths[name][groups.target] = column.lengths[groups.source]
            elif column.is_ragged:
                lengths[name] = column.lengths[rows]
        return Header(views.index.take(rows), lengths, {name: kind_of(c) for name, c in views.columns.items()})

    @staticmethod
    def concat(headers: Sequence[Header]) -> Header:
        """Rows of several sources, one after the other; the kinds are those of the first."""
        first = headers[0]
        return Header(
            RowIndex.concat([header.index for header in headers]),
            {name: np.concatenate([header.lengths[name] for header in headers]) for name in first.lengths},
            first.kinds,
        )

    @property
    def row_bytes(self) -> Int64:
        """Bytes of each row with its place in the index and in the offsets, [rows]."""
        total = np.full(len(self.index), 8 * len(INDEX_COLUMNS), np.int64)
        for name, kind in self.kinds.items():
            total += kind.item_bytes * self.lengths[name] + 8 if kind.ragged else kind.item_bytes
        return total

    @property
    def num_bytes(self) -> int:
        """Of all its rows."""
        return int(self.row_bytes.sum())

    def to_bytes(self) -> bytes:
        """Arrow IPC stream, without the kinds."""
        return table_to_bytes(self.index.columns() | self.lengths)

    @staticmethod
    def from_bytes(data: bytes | pa.Buffer, kinds: dict[str, Kind]) -> Header:
        columns = table_from_bytes(data)
        lengths = {name: values for name, values in columns.items() if name not in INDEX_COLUMNS}
        return Header(RowIndex.of_columns(columns), lengths, kinds)

    def take(self, rows: Int64) -> Header:
        """The rows at positions `rows`."""
        lengths = {name: values[rows] for name, values in self.lengths.items()}
        return Header(self.index.take(rows), lengths, self.kinds)


@dataclass(frozen=True, slots=True, eq=False)
class Arrangement:
    """The consumer's segment, and for every source the row of the segment that each of its rows becomes."""

    contents: Contents
    header: Header
    targets: tuple[Int64, ...]

    def write_index(self, views: Views) -> None:
        """Fill in everything that is known before the values arrive."""
        views.write_index(self.header.index)
        for name, lengths in self.header.lengths.items():
            offsets = views.columns[name].offsets
            assert offsets is not None
            offsets[:] = offsets_of(lengths)


def arrange(headers: Sequence[Header], edge: str) -> Arrangement:
    """Put the rows of all sources into row_id order.

    Raises BadData when a row comes twice or the sources do not agree on the columns, or on the length of what is stored
    per group: that lies at the first row of the group, once, whoever sends it.
    """
    filled = [header for header in headers if len(header.index)] or list(headers[:1])
    _check_kinds(filled, edge)
    merged = Header.concat(filled)
    order = merged.index.order()
    ordered = merged.take(order)
    row_ids = ordered.index.row_ids
    twice = row_ids[1:][np.diff(row_ids) == 0]
    if len(twice):
        raise BadData(f"edge {edge}: row {int(twice[0])} was put by two producers")
    ordered = replace(ordered, lengths=ordered.lengths | _lengths_of_groups(ordered, edge))
    num_rows = len(order)
    sizes = {
        name: (kind, int(ordered.lengths[name].sum()) if kind.ragged else num_rows)
        for name, kind in merged.kinds.items()
    }
    targets = RowIndex.targets_of(order, [len(header.index) for header in headers])
    return Arrangement(plan_contents(num_rows, sizes), ordered, tuple(targets))


def check_announced(header: Header, first: int, piece: Batch, what: str) -> None:
    """Rows that have come are those that the header tells from its row `first` on, and as long: also a group's values
    come with the row that announced them. Raises Bug naming row, column and both lengths.
    """
    announced = slice(first, first + len(piece))
    strange = np.flatnonzero(piece.row_ids != header.index.row_ids[announced])
    if len(strange):
        came, expected = piece.row_ids[strange[0]], header.index.row_ids[announced][strange[0]]
        raise Bug(f"{what}: row {int(came)} came in the place of row {int(expected)}")
    for name, lengths in header.lengths.items():
        found = piece.columns[name].lengths
        wrong = np.flatnonzero(found != lengths[announced])
        if len(wrong):
            row, came, expected = (int(values[wrong[0]]) for values in (piece.row_ids, found, lengths[announced]))
            raise Bug(f"{what}: column {name}: row {row} came with {came} values; its header said {expected}")


def place(target: Views, rows: Int64, source: Views | Batch, source_rows: Int64) -> None:
    """Copy the values of some rows of a source, a part or a piece of a stream, to rows `rows` of the segment.

    They are as long as the header said.
    """
    runs = groups = Runs.of(source_rows, rows)
    if any(into.per_group for into in target.columns.values()):
        of_source = source.index.group_runs(source_rows)
        groups = Runs.of(of_source.source, target.index.head_of(rows[of_source.target]))
    known: list[tuple[Column, Column, Stretches]] = []
    for name, into in target.columns.items():
        column, moved = source.columns[name], groups if into.per_group else runs
        if into.offsets is None or column.offsets is None:
            copy_rows(into.values, into.offsets, column.values, column.offsets, moved)
            continue
        # most columns of a batch have rows as long as another's: what is worked out for one is right for both
        stretches = next((each for to, of, each in known if to.has_rows_like(into) and of.has_rows_like(column)), None)
        if stretches is None:
            stretches = Stretches.of(into.offsets, column.offsets, moved)
            known.append((into, column, stretches))
        stretches.copy(into.values, column.values)


def _lengths_of_groups(header: Header, edge: str) -> dict[str, Int64]:
    """Lengths of the columns per group: of each group at its first row, whichever rows the sources sent it with."""
    per_group = [name for name, kind in header.kinds.items() if kind.per_group]
    if not per_group:
        return {}
    heads, settled = header.index.heads(), {}
    for name in per_group:
        lengths = header.lengths[name]
        settled[name] = np.zeros_like(lengths)
        np.maximum.at(settled[name], heads, lengths)
        wrong = np.flatnonzero((lengths != 0) & (lengths != settled[name][heads]))
        if len(wrong):
            at = wrong[0]
            raise BadData(
                f"edge {edge}: producers disagree on column {name} of group {int(header.index.group_ids[at])}: "
                f"{int(lengths[at])} and {int(settled[name][heads[at]])} values; it is one for the whole group"
            )
    return settled


def _check_kinds(headers: Sequence[Header], edge: str) -> None:
    first = headers[0].kinds
    for header in headers[1:]:
        if header.kinds != first:
            names = sorted(name for name in {*first, *header.kinds} if first.get(name) != header.kinds.get(name))
            raise BadData(
                f"edge {edge}: producers disagree on column(s) {', '.join(names)}: {_shown(first, names)} and "
                f"{_shown(header.kinds, names)}; every rank must write the same columns with the same dtype"
            )


def _shown(kinds: dict[str, Kind], names: Sequence[str]) -> str:
    return ", ".join(
        f"{name} {kinds[name].dtype}{list(kinds[name].tail) or ''}{' per group' if kinds[name].per_group else ''}"
        if name in kinds
        else f"no {name}"
        for name in names
    )
