"""How rows of several sources come to lie in one segment: pure arithmetic on their headers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rljob_worker.batch import Batch
from rljob_worker.batch.column_kind import ColumnKind
from rljob_worker.batch.gather import Runs, Stretches, offsets_of
from rljob_worker.batch.row_index import INDEX_COLUMNS, RowIndex, row_number
from rljob_worker.databuffer.protocol.contents import Contents
from rljob_worker.databuffer.protocol.errors import require
from rljob_worker.databuffer.rows.segment import Views, plan_contents
from rljob_worker.errors import BadData

Int64 = NDArray[np.int64]
Shape = TypeVar("Shape", bound=tuple[Any, ...])

MAX_BYTES = 1 << 50
"""Bytes of a column of a share from one host, at most: sums over columns and hosts stay within 63 bits."""


@dataclass(frozen=True, slots=True, eq=False)
class Header:
    """What a source is about to send: its rows, and how long each is in every ragged column.

    What is stored per group is sent with the first row of the group that a part sends: the others have length 0.
    """

    index: RowIndex
    lengths: dict[str, Int64]
    kinds: dict[str, ColumnKind]

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
        return Header(views.index.take(rows), lengths, views.kinds)

    @staticmethod
    def concat(headers: Sequence[Header]) -> Header:
        """Rows of several sources, one after the other; the kinds are those of the first."""
        first = headers[0]
        return Header(
            RowIndex.concat([header.index for header in headers]),
            {name: np.concatenate([header.lengths[name] for header in headers]) for name in first.lengths},
            first.kinds,
        )

    def num_values(self, name: str) -> int:
        """Number of values of all its rows together in one column."""
        return int(self.lengths[name].sum()) if name in self.lengths else len(self.index)

    @property
    def row_bytes(self) -> Int64:
        """Bytes of each row with its place in the index and in the offsets, [rows]."""
        total = np.full(len(self.index), 8 * len(INDEX_COLUMNS), np.int64)
        for name, kind in self.kinds.items():
            total += kind.item_bytes * self.lengths[name] + 8 if kind.ragged else kind.item_bytes
        return total

    @property
    def num_bytes(self) -> int:
        """Bytes of all its rows."""
        return int(self.row_bytes.sum())

    def to_bytes(self) -> bytes:
        """Index and lengths, int64 [3 + ragged columns in the order of the kinds, rows]."""
        lengths = (self.lengths[name] for name in _ragged(self.kinds))
        return b"".join(values.tobytes() for values in (*self.index.columns().values(), *lengths))

    @staticmethod
    def from_bytes(data: bytes, kinds: dict[str, ColumnKind]) -> Header:
        """What a peer says. Raises Malformed for kinds, lengths or numbers of tokens that cannot be so."""
        ragged = _ragged(kinds)
        for name, kind in kinds.items():
            require(kind.is_possible, f"no column is like {name}: {kind}")
        row = 8 * (len(INDEX_COLUMNS) + len(ragged))
        require(len(data) % row == 0, f"a header of {len(data):,} bytes, where a row has {row}")
        values = np.frombuffer(data, np.int64).reshape(len(INDEX_COLUMNS) + len(ragged), len(data) // row)
        index = RowIndex(*values[: len(INDEX_COLUMNS)])
        lengths = dict(zip(ragged, values[len(INDEX_COLUMNS) :], strict=True))
        for name, of_rows in (("num_tokens", index.num_tokens), *lengths.items()):
            size = kinds[name].item_bytes if name in kinds else 1
            require(len(of_rows) == 0 or of_rows.min() >= 0, f"{name} of {of_rows.min(initial=0)}")
            require(of_rows.sum(dtype=np.float64) * size <= MAX_BYTES, f"{name} has more bytes than any host")
        return Header(index, lengths, kinds)

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
    per group: that lies at the first row of the group, once, no matter which source sends it.
    """
    filled = [header for header in headers if len(header.index)] or list(headers[:1])
    check_kinds(filled, edge)
    merged = Header.concat(filled)
    order = merged.index.order()
    ordered = merged.take(order)
    row_ids = ordered.index.row_ids
    twice = row_ids[1:][np.diff(row_ids) == 0]
    if len(twice):
        raise BadData(f"edge {edge}: row {row_number(twice[0])} was put by two producers")
    ordered = replace(ordered, lengths=ordered.lengths | _lengths_of_groups(ordered, edge))
    num_rows = len(order)
    sizes = {
        name: (kind, int(ordered.lengths[name].sum()) if kind.ragged else num_rows)
        for name, kind in merged.kinds.items()
    }
    targets = RowIndex.targets_of(order, [len(header.index) for header in headers])
    return Arrangement(plan_contents(num_rows, sizes), ordered, tuple(targets))


def write_rows(target: Views, rows: Int64, source: Views | Batch, source_rows: Int64) -> None:
    """Copy the values of some rows of a part to rows `rows` of the segment. They are as long as the header said."""
    by_row = by_group = Runs.of(source_rows, rows)
    if any(into.per_group for into in target.columns.values()):
        groups = source.index.group_runs(source_rows)
        by_group = Runs.of(groups.source, target.index.head_of(rows[groups.target]))
    offsets = {name: column.offsets for name, column in source.columns.items()}
    for stretches, names in moves(target, offsets, by_row, by_group):
        for name in names:
            stretches.copy(target.columns[name].values, source.columns[name].values)


def moves(
    target: Views, offsets: Mapping[str, Int64 | None], by_row: Runs, by_group: Runs
) -> list[tuple[Stretches, list[str]]]:
    """Which values of a source with these offsets belong where, and the columns for which that is so: most columns of
    a batch have rows as long as another's."""
    shapes = {name: (into.per_group, into.offsets, offsets[name]) for name, into in target.columns.items()}
    return [
        (Stretches.of(to, begin, by_group if per_group else by_row), names)
        for (per_group, to, begin), names in alike_columns(shapes)
    ]


def alike_columns(shapes: Mapping[str, Shape]) -> list[tuple[Shape, list[str]]]:
    """The shapes there are, and the columns of each. A shape: whether a column is per group, then its arrays of
    offsets."""
    found: list[tuple[Shape, list[str]]] = []
    for name, shape in shapes.items():
        names = next((names for other, names in found if _are_alike(shape, other)), None)
        if names is None:
            found.append((shape, names := []))
        names.append(name)
    return found


def _are_alike(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Whether both are per group or both are not, with equal arrays of offsets or none."""
    return left[0] == right[0] and all(
        a is b or (a is not None and b is not None and np.array_equal(a, b))
        for a, b in zip(left[1:], right[1:], strict=True)
    )


def _lengths_of_groups(header: Header, edge: str) -> dict[str, Int64]:
    """Lengths of the columns per group: of each group at its first row, with whatever rows the sources sent it."""
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


def check_kinds(headers: Sequence[Header], edge: str) -> None:
    """Raises BadData naming the columns on which producers do not agree."""
    first = headers[0].kinds
    for header in headers[1:]:
        if header.kinds != first:
            names = sorted(name for name in {*first, *header.kinds} if first.get(name) != header.kinds.get(name))
            raise BadData(
                f"edge {edge}: producers disagree on column(s) {', '.join(names)}: {_shown(first, names)} and "
                f"{_shown(header.kinds, names)}; every rank must write the same columns with the same dtype"
            )


def _ragged(kinds: Mapping[str, ColumnKind]) -> list[str]:
    return [name for name, kind in kinds.items() if kind.ragged]


def _shown(kinds: dict[str, ColumnKind], names: Sequence[str]) -> str:
    return ", ".join(
        f"{name} {kinds[name].dtype}{list(kinds[name].tail) or ''}{' per group' if kinds[name].per_group else ''}"
        if name in kinds
        else f"no {name}"
        for name in names
    )
