"""Rows of sealed parts as Arrow record batches of bounded size, each with a checksum."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from rljob_worker.batch import Column
from rljob_worker.batch.arrow import schema_of, to_record
from rljob_worker.batch.column_kind import ColumnKind
from rljob_worker.batch.gather import Runs, Taking
from rljob_worker.batch.row_index import RowIndex
from rljob_worker.databuffer.protocol.codec import encode, read_packed
from rljob_worker.databuffer.protocol.errors import Malformed
from rljob_worker.databuffer.protocol.peer_side import RecordStream
from rljob_worker.databuffer.rows.arrangement import Header, alike_columns, check_kinds
from rljob_worker.databuffer.rows.segment import Views

Int64 = NDArray[np.int64]

BATCH_BYTES = 4 << 20
"""Record batches: larger ones leave the processor's caches between gathering, checksum and socket."""
SMALLEST_BATCH_BYTES = 1 << 19
ALL_BATCHES_BYTES = 64 << 20
"""What the record batches of all sources of one share may take in private memory."""
ROW_BYTES = 1 << 30
"""The longest row: gRPC counts the bytes of a message in 31 bits."""
FEW_BYTES = 1 << 16
"""So few bytes of rows travel with their offer: a stream of their own would take longer."""
ALL_FEW_BYTES = 8 << 20
"""What the rows in the offers of all sources of one share may take in private memory."""

Selection = tuple[Views, Int64]
"""A part and the positions of the rows that are wanted."""


def batch_bytes_for(num_sources: int) -> int:
    """Size of the record batches when `num_sources` sources send at once."""
    return max(SMALLEST_BATCH_BYTES, min(BATCH_BYTES, ALL_BATCHES_BYTES // max(1, num_sources)))


def few_bytes_for(num_sources: int, few_bytes: int = FEW_BYTES) -> int:
    """What rows may have to travel with their offer when there are `num_sources` sources."""
    return min(few_bytes, ALL_FEW_BYTES // max(1, num_sources))


def header_of(selections: Sequence[Selection], edge: str) -> Header:
    """What is in a stream of these rows, in its order. Parts without rows only tell the types, if nobody else does.

    Raises BadData when the producers do not agree on the columns.
    """
    headers = [Header.of(views, rows) for views, rows in selections]
    filled = [header for header in headers if len(header.index)] or headers[:1]
    check_kinds(filled, edge)
    return Header.concat(filled)


def stream(
    selections: Sequence[Selection], gathered: Callable[[float], None], batch_bytes: int = BATCH_BYTES
) -> RecordStream:
    """The rows, in the order of their header."""
    views = next((views for views, rows in selections if len(rows)), selections[0][0])
    kinds = views.kinds
    return RecordStream(schema_of(kinds), _records(selections, kinds, gathered, batch_bytes))


def _records(
    selections: Iterable[Selection],
    kinds: Mapping[str, ColumnKind],
    gathered: Callable[[float], None],
    batch_bytes: int,
) -> Iterator[tuple[pa.RecordBatch, bytes]]:
    for views, rows in selections:
        part = PartRows(views, rows)
        for first, stop in part.cuts(batch_bytes):
            start = time.perf_counter()
            index, columns = part.gather(first, stop)
            checksum = rows_checksum(index, columns)
            record = to_record(index, columns, kinds)
            gathered(time.perf_counter() - start)
            yield record, checksum


def rows_checksum(index: RowIndex, columns: Mapping[str, Column]) -> bytes:
    """XXH3 (64 bits) of everything that rows consist of, columns by name."""
    digest = xxhash.xxh3_64()
    for values in index.columns().values():
        digest.update(values.data)
    for _, column in sorted(columns.items()):
        if column.offsets is not None:
            digest.update(column.offsets.data)
        digest.update(column.values.data)
    return digest.digest()


def packed(selections: Sequence[Selection]) -> bytes:
    """The stream of `selections` as bytes: for few rows."""
    records = stream(selections, lambda seconds: None).records
    return encode([(record.serialize().to_pybytes(), checksum) for record, checksum in records])


def unpacked(data: bytes, kinds: Mapping[str, ColumnKind]) -> Iterator[tuple[pa.RecordBatch, bytes]]:
    """The other way round. Raises Malformed."""
    schema = schema_of(kinds)
    for record, checksum in read_packed(data):
        try:
            yield pa.ipc.read_record_batch(pa.py_buffer(record), schema), checksum
        except (pa.ArrowException, OSError) as error:
            raise Malformed(f"{len(record):,} bytes are not a record batch: {error}") from error


class PartRows:
    """Rows of a part in some order, as they leave it piece by piece: what is the same for all is worked out once."""

    def __init__(self, views: Views, rows: Int64) -> None:
        self._views, self._rows, self._index = views, rows, views.index.take(rows)
        by_row, by_group = Runs.taking(rows), views.index.group_runs(rows)
        shapes = {name: (column.per_group, column.offsets) for name, column in views.columns.items()}
        self._takings = [
            (Taking.of(offsets, by_group if per_group else by_row, len(rows)), names)
            for (per_group, offsets), names in alike_columns(shapes)
        ]

    def gather(self, first: int, stop: int) -> tuple[RowIndex, dict[str, Column]]:
        """Rows [first, stop), over the same memory where they are neighbours there.

        What is stored per group comes with the first of all rows that belongs to it.
        """
        columns = {}
        for taking, names in self._takings:
            piece = taking.within(first, stop)
            for name in names:
                column = self._views.columns[name]
                values = piece.values(column.values, may_view=True)
                columns[name] = Column(values, piece.offsets, column.dtype, column.per_group)
        return self._index.within(first, stop), columns

    def cuts(self, batch_bytes: int = BATCH_BYTES) -> list[tuple[int, int]]:
        """First and stop of pieces that have at most `batch_bytes` each, or are one row."""
        ends = np.cumsum(bytes_per_row(self._views, self._rows))
        cuts = [0]
        while cuts[-1] < len(ends):
            base = ends[cuts[-1] - 1] if cuts[-1] else 0
            stop = int(np.searchsorted(ends, base + batch_bytes, side="right"))
            cuts.append(max(stop, cuts[-1] + 1))
        return list(itertools.pairwise(cuts))


def bytes_per_row(views: Views, rows: Int64 | None = None) -> Int64:
    """Bytes of each of the rows at `rows` (None: of all) when these are sent together, [rows]."""
    return Header.of(views, np.arange(len(views.index)) if rows is None else rows).row_bytes
