"""A batch inside the arena: Arrow's columnar buffers at 64-byte steps, described by a table of contents.

    row ids | group ids | num tokens | values of column 1 | offsets of column 1 | values of column 2 | …

The buffers are those of an Arrow IPC body. The table of contents travels in the control messages instead of an IPC
envelope, because a consumer's segment is filled range by range from several producers, and an IPC writer only takes
whole batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rljob_worker.batch import Batch, Column
from rljob_worker.batch.column_kind import ColumnKind, column_kind_of
from rljob_worker.batch.row_index import INDEX_COLUMNS, RowIndex
from rljob_worker.databuffer.protocol.contents import Contents, Field

Int64 = NDArray[np.int64]
Bytes = NDArray[np.uint8]

ALIGNMENT = 64
LARGE_BYTES = 64 << 20
"""A batch of as many bytes is written by two threads: one core does not use all of the memory's bandwidth. Of fewer
much stays in the processor's caches, and a second thread takes more than it gains."""
NUM_THREADS = 2
PIECE_BYTES = 8 << 20
NUM_INDEX_COLUMNS = len(INDEX_COLUMNS)


@dataclass(frozen=True, slots=True)
class Views:
    """Arrays over the memory of one segment; writable when the memory is."""

    index: RowIndex
    columns: dict[str, Column]

    @property
    def kinds(self) -> dict[str, ColumnKind]:
        return {name: column_kind_of(column) for name, column in self.columns.items()}

    def write_index(self, index: RowIndex) -> None:
        """Copy the index of as many rows into the segment."""
        for into, values in zip(self.index.columns().values(), index.columns().values(), strict=True):
            into[:] = values

    def as_batch(self) -> Batch:
        return Batch.of(self.index, self.columns)


def plan_contents(num_rows: int, columns: Mapping[str, tuple[ColumnKind, int]]) -> Contents:
    """Lay out columns given as name -> (kind, number of values over all rows)."""
    at = NUM_INDEX_COLUMNS * _aligned(8 * num_rows)
    fields = []
    for name, (kind, num_values) in columns.items():
        values_at, at = at, at + _aligned(num_values * kind.item_bytes)
        offsets_at = None
        if kind.ragged:
            offsets_at, at = at, at + _aligned(8 * (num_rows + 1))
        fields.append(Field(name, kind, num_values, values_at, offsets_at))
    return Contents(num_rows, tuple(fields), at)


def contents_of(batch: Batch) -> Contents:
    """Layout of a segment that holds `batch`."""
    return plan_contents(
        len(batch), {name: (column_kind_of(column), len(column.values)) for name, column in batch.columns.items()}
    )


def views(memory: Bytes, offset: int, contents: Contents) -> Views:
    """The segment at `offset` as arrays, without a copy."""
    segment = memory[offset : offset + contents.num_bytes]
    rows = contents.num_rows
    step = _aligned(8 * rows)
    index = RowIndex(*(segment[i * step : i * step + 8 * rows].view(np.int64) for i in range(NUM_INDEX_COLUMNS)))
    columns = {field.name: _column(segment, field, rows) for field in contents.fields}
    return Views(index, columns)


def write(memory: Bytes, offset: int, contents: Contents, batch: Batch) -> None:
    """Copy a batch into its segment: the only copy on the producing host."""
    target = views(memory, offset, contents)
    target.write_index(batch.index)
    for name, column in batch.columns.items():
        offsets = target.columns[name].offsets
        if column.offsets is not None and offsets is not None:
            offsets[:] = column.offsets
    pairs = [(target.columns[name].values, column.values) for name, column in batch.columns.items()]
    if contents.num_bytes < LARGE_BYTES:
        for into, values in pairs:
            into[...] = values
        return
    with ThreadPoolExecutor(NUM_THREADS, "put") as pool:  # numpy copies without the interpreter's lock
        for _ in pool.map(np.copyto, *zip(*_pieces(pairs), strict=True)):
            pass


def _pieces(pairs: list[tuple[NDArray[Any], NDArray[Any]]]) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Target and source of what one thread copies at a time."""
    for into, values in pairs:
        step = max(1, PIECE_BYTES * len(into) // max(1, into.nbytes))
        for first in range(0, len(into), step):
            yield into[first : first + step], values[first : first + step]


def _column(segment: Bytes, field: Field, num_rows: int) -> Column:
    stop = field.values_at + field.num_values * field.kind.item_bytes
    values = segment[field.values_at : stop].view(field.kind.storage).reshape(field.num_values, *field.kind.tail)
    if field.offsets_at is None:
        return Column(values, None, field.kind.dtype)
    offsets = segment[field.offsets_at : field.offsets_at + 8 * (num_rows + 1)].view(np.int64)
    return Column(values, offsets, field.kind.dtype, field.kind.per_group)


def _aligned(num_bytes: int) -> int:
    return math.ceil(num_bytes / ALIGNMENT) * ALIGNMENT
