"""Rows of sealed parts as a stream of Arrow record batches: header first, then chunks of bounded size."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rljob_worker.batch import Batch, Column
from rljob_worker.databuffer.rows.arrangement import Header
from rljob_worker.databuffer.rows.schema import to_arrow
from rljob_worker.databuffer.rows.segment import Views
from rljob_worker.gather import Runs

Int64 = NDArray[np.int64]

CHUNK_BYTES = 4 << 20
SMALLEST_CHUNK_BYTES = 1 << 19
ALL_CHUNKS_BYTES = 64 << 20
"""What the chunks of all sources of one share may take in private memory."""
MESSAGE_BYTES = 64 << 20

Selection = tuple[Views, Int64]
"""A part and the positions of the rows that are wanted."""


def chunk_bytes_for(num_sources: int) -> int:
    """Size of the chunks when so many sources send at once."""
    return max(SMALLEST_CHUNK_BYTES, min(CHUNK_BYTES, ALL_CHUNKS_BYTES // max(1, num_sources)))


def stream(
    selections: Sequence[Selection], gathered: Callable[[float], None], chunk_bytes: int = CHUNK_BYTES
) -> tuple[pa.Schema, Iterator[tuple[pa.RecordBatch, bytes]]]:
    """Schema and messages: the header as metadata of an empty batch, then the rows in the same order."""
    headers = [Header.of(views, rows) for views, rows in selections]
    filled = [h for h in headers if len(h.index)] or headers[:1]
    typed = next((views for views, rows in selections if len(rows)), selections[0][0])
    empty = to_arrow(_take(typed, np.empty(0, np.int64)))
    return empty.schema, _messages(selections, Header.concat(filled), empty, gathered, chunk_bytes)


def _messages(
    selections: Sequence[Selection],
    header: Header,
    empty: pa.RecordBatch,
    gathered: Callable[[float], None],
    chunk_bytes: int,
) -> Iterator[tuple[pa.RecordBatch, bytes]]:
    yield empty, header.to_bytes()
    for views, rows in selections:
        for piece in pieces(views, rows, chunk_bytes):
            start = time.perf_counter()
            record = to_arrow(_take(views, piece))
            gathered(time.perf_counter() - start)
            yield record, b""


def pieces(views: Views, rows: Int64, chunk_bytes: int = CHUNK_BYTES) -> list[Int64]:
    """Split positions so that a piece has at most `chunk_bytes`, or is one row."""
    if len(rows) == 0:
        return []
    ends = np.cumsum(row_bytes(views)[rows])
    cuts: list[int] = []
    base = 0
    while ends[-1] - base > chunk_bytes:
        cut = max(int(np.searchsorted(ends, base + chunk_bytes, side="right")), (cuts[-1] if cuts else 0) + 1)
        if cut >= len(rows):
            break
        cuts.append(cut)
        base = int(ends[cut - 1])
    return np.split(rows, cuts)


def row_bytes(views: Views) -> Int64:
    """Bytes that every row takes, [rows]."""
    total = np.full(len(views.index), 24, np.int64)
    for column in views.columns.values():
        item = column.values.dtype.itemsize * int(np.prod(column.values.shape[1:], dtype=np.int64))
        total += item * column.lengths + 8 if column.is_ragged else item
    return total


def take_rows(columns: Mapping[str, Column], rows: Int64) -> dict[str, Column]:
    """The rows at `rows` of every column; views when they are neighbours, else one gather."""
    runs = Runs.taking(rows)
    if runs.is_one:
        first = int(rows[0]) if len(rows) else 0
        return {name: column.slice(first, first + len(rows)) for name, column in columns.items()}
    return {name: column.gather(runs) for name, column in columns.items()}


def _take(views: Views, rows: Int64) -> Batch:
    return Batch.of(views.index.take(rows), take_rows(views.columns, rows))
