"""Rows of sealed parts as a stream of Arrow record batches of bounded size."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rljob_worker.batch import Batch, Column
from rljob_worker.databuffer.rows.arrangement import Header
from rljob_worker.databuffer.rows.schema import kind_of, schema_of, to_arrow
from rljob_worker.databuffer.rows.segment import Views
from rljob_worker.gather import Runs, Taking

Int64 = NDArray[np.int64]

CHUNK_BYTES = 16 << 20
"""A chunk costs about a millisecond of processor at both ends together, whatever is in it."""
SMALLEST_CHUNK_BYTES = 1 << 19
ALL_CHUNKS_BYTES = 64 << 20
"""What the chunks of all sources of one share may take in private memory."""
MESSAGE_BYTES = 64 << 20
FEW_BYTES = 1 << 16
"""So few bytes of rows travel with their offer: a stream of their own would take longer."""
ALL_FEW_BYTES = 8 << 20
"""What the rows in the offers of all sources of one share may take in private memory."""

Selection = tuple[Views, Int64]
"""A part and the positions of the rows that are wanted."""


def chunk_bytes_for(num_sources: int) -> int:
    """Size of the chunks when so many sources send at once."""
    return max(SMALLEST_CHUNK_BYTES, min(CHUNK_BYTES, ALL_CHUNKS_BYTES // max(1, num_sources)))


def few_bytes_for(num_sources: int, few_bytes: int = FEW_BYTES) -> int:
    """What rows may have to travel with their offer when there are so many sources."""
    return min(few_bytes, ALL_FEW_BYTES // max(1, num_sources))


def header_of(selections: Sequence[Selection]) -> Header:
    """What is in a stream of these rows, in its order. Parts without rows only tell the types, if nobody else does."""
    headers = [Header.of(views, rows) for views, rows in selections]
    return Header.concat([header for header in headers if len(header.index)] or headers[:1])


def stream(
    selections: Sequence[Selection], gathered: Callable[[float], None], chunk_bytes: int = CHUNK_BYTES
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Schema and record batches of the rows, in the order of their header."""
    typed = next((views for views, rows in selections if len(rows)), selections[0][0])
    kinds = {name: kind_of(column) for name, column in typed.columns.items()}
    return schema_of(kinds), _batches(selections, gathered, chunk_bytes)


def packed(selections: Sequence[Selection]) -> bytes:
    """The same stream as bytes, Arrow IPC: for few rows."""
    schema, records = stream(selections, lambda seconds: None)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(use_threads=False)) as writer:
        for record in records:
            writer.write_batch(record)
    return bytes(sink.getvalue())


def unpacked(data: bytes) -> Iterator[pa.RecordBatch]:
    """The other way round, over the same memory."""
    yield from pa.ipc.open_stream(data)


def _batches(
    selections: Sequence[Selection], gathered: Callable[[float], None], chunk_bytes: int
) -> Iterator[pa.RecordBatch]:
    for views, rows in selections:
        for piece in pieces(views, rows, chunk_bytes):
            start = time.perf_counter()
            record = to_arrow(piece.batch())
            gathered(time.perf_counter() - start)
            yield record


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Some rows of a part in one message: by row, and the groups whose own columns come with these rows."""

    views: Views
    by_row: Runs
    by_group: Runs

    def __len__(self) -> int:
        return len(self.by_row.source)

    def batch(self) -> Batch:
        """Views where the rows are neighbours, else one gather.

        What is stored per group is there only if no earlier piece has it.
        """
        known: list[tuple[Column, Taking]] = []
        columns = {name: self._column(column, known) for name, column in self.views.columns.items()}
        return Batch.of(self.views.index.take(self.by_row.source), columns)

    def _column(self, column: Column, known: list[tuple[Column, Taking]]) -> Column:
        """Most columns have rows as long as another's: what is worked out for one is right for both."""
        runs = self.by_group if column.per_group else self.by_row
        if column.offsets is None:
            return column.gather(runs, len(self), may_view=True)
        taking = next((each for other, each in known if other.has_rows_like(column)), None)
        if taking is None:
            taking = Taking(column.offsets, runs, len(self))
            known.append((column, taking))
        return Column(taking.values(column.values, may_view=True), taking.offsets, column.dtype, column.per_group)


def pieces(views: Views, rows: Int64, chunk_bytes: int = CHUNK_BYTES) -> list[Piece]:
    """The rows at `rows` cut so that a piece has at most `chunk_bytes`, or is one row."""
    groups = views.index.group_runs(rows)
    return [
        Piece(views, Runs.taking(rows[first:stop]), groups.within(first, stop))
        for first, stop in _cuts(row_bytes(views, rows), chunk_bytes)
    ]


def _cuts(sizes: Int64, chunk_bytes: int) -> list[tuple[int, int]]:
    """First and stop of every piece."""
    ends = np.cumsum(sizes)
    cuts = [0]
    while cuts[-1] < len(sizes):
        base = ends[cuts[-1] - 1] if cuts[-1] else 0
        stop = int(np.searchsorted(ends, base + chunk_bytes, side="right"))
        cuts.append(max(stop, cuts[-1] + 1))
    return list(itertools.pairwise(cuts))


def row_bytes(views: Views, rows: Int64 | None = None) -> Int64:
    """Bytes of each of the rows at `rows` (None: of all) when these are sent together, [rows]."""
    return Header.of(views, np.arange(len(views.index)) if rows is None else rows).row_bytes
