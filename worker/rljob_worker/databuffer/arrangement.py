"""How rows of several sources come to lie in one segment: pure arithmetic on their headers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rljob_worker.batch import Column, offsets_of
from rljob_worker.databuffer.gather import Runs, copy_rows
from rljob_worker.databuffer.schema import INDEX_COLUMNS, Kind, kind_of, kinds_of, table_from_bytes, table_to_bytes
from rljob_worker.databuffer.segment import Contents, Views, plan_contents
from rljob_worker.errors import BadData

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Header:
    """What a source is about to send: its rows, and how long each is in every ragged column."""

    row_ids: Int64
    group_ids: Int64
    num_tokens: Int64
    lengths: dict[str, Int64]
    kinds: dict[str, Kind]

    @staticmethod
    def of(views: Views, rows: Int64) -> Header:
        """Header of the rows at positions `rows` of a segment."""
        return Header(
            views.row_ids[rows],
            views.group_ids[rows],
            views.num_tokens[rows],
            {name: column.lengths[rows] for name, column in views.columns.items() if column.is_ragged},
            {name: kind_of(column) for name, column in views.columns.items()},
        )

    @staticmethod
    def concat(headers: Sequence[Header]) -> Header:
        """Rows of several sources, one after the other; the kinds are those of the first."""
        first = headers[0]
        return Header(
            np.concatenate([header.row_ids for header in headers]),
            np.concatenate([header.group_ids for header in headers]),
            np.concatenate([header.num_tokens for header in headers]),
            {name: np.concatenate([header.lengths[name] for header in headers]) for name in first.lengths},
            first.kinds,
        )

    def to_bytes(self) -> bytes:
        """Arrow IPC stream; the kinds travel as the schema of the rows."""
        index = dict(zip(INDEX_COLUMNS, (self.row_ids, self.group_ids, self.num_tokens), strict=True))
        return table_to_bytes(index | self.lengths)

    @staticmethod
    def from_bytes(data: pa.Buffer, schema: pa.Schema) -> Header:
        lengths = table_from_bytes(data)
        row_ids, group_ids, num_tokens = (lengths.pop(name) for name in INDEX_COLUMNS)
        return Header(row_ids, group_ids, num_tokens, lengths, kinds_of(schema))


@dataclass(frozen=True, slots=True, eq=False)
class Arrangement:
    """The consumer's segment, and for every source the row of the segment that each of its rows becomes."""

    contents: Contents
    header: Header
    targets: tuple[Int64, ...]

    def write_index(self, views: Views) -> None:
        """Fill in everything that is known before the values arrive."""
        views.row_ids[:] = self.header.row_ids
        views.group_ids[:] = self.header.group_ids
        views.num_tokens[:] = self.header.num_tokens
        for name, lengths in self.header.lengths.items():
            offsets = views.columns[name].offsets
            assert offsets is not None
            offsets[:] = offsets_of(lengths)


def arrange(headers: Sequence[Header], edge: str) -> Arrangement:
    """Put the rows of all sources into row_id order.

    Raises BadData when a row comes twice or the sources do not agree on the columns.
    """
    filled = [header for header in headers if len(header.row_ids)] or list(headers[:1])
    _check_kinds(filled, edge)
    merged = Header.concat(filled)
    order = np.argsort(merged.row_ids, kind="stable")
    ordered = Header(
        merged.row_ids[order],
        merged.group_ids[order],
        merged.num_tokens[order],
        {name: lengths[order] for name, lengths in merged.lengths.items()},
        merged.kinds,
    )
    twice = ordered.row_ids[1:][np.diff(ordered.row_ids) == 0]
    if len(twice):
        raise BadData(f"edge {edge}: row {int(twice[0])} was put by two producers")
    num_rows = len(order)
    sizes = {
        name: (kind, int(ordered.lengths[name].sum()) if kind.ragged else num_rows)
        for name, kind in merged.kinds.items()
    }
    return Arrangement(plan_contents(num_rows, sizes), ordered, _targets(headers, order))


def place(target: Views, rows: Int64, source: Mapping[str, Column], source_rows: Int64) -> None:
    """Copy the values of some rows of a source to rows `rows` of the segment."""
    if len(rows) == 0:
        return
    runs = Runs.of(source_rows, rows)
    for name, column in target.columns.items():
        copy_rows(column, source[name], runs)


def _targets(headers: Sequence[Header], order: Int64) -> tuple[Int64, ...]:
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    ends = np.cumsum([len(header.row_ids) for header in headers])
    return tuple(np.split(position, ends[:-1]))


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
        f"{name} {kinds[name].dtype}{list(kinds[name].tail) or ''}" if name in kinds else f"no {name}" for name in names
    )
