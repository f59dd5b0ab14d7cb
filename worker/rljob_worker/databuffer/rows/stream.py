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
STREAM_BYTES = 128 << 20
"""One stream keeps one core busy at either end: of twice as many bytes from one host, each half has a stream and a
connection of its own."""
MAX_STREAMS = 4
"""Streams that bring the rows of one share from one host."""
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


def stream_ranges(header: Header) -> list[tuple[int, int]]:
    """First and stop of the rows that each stream from one host brings; about as many bytes in each."""
    ends = np.cumsum(header.row_bytes)
    num_bytes = int(ends[-1]) if len(ends) else 0
    num_streams = max(1, min(MAX_STREAMS, num_bytes // STREAM_BYTES))
    inner = np.searchsorted(ends, [num_bytes * i // num_streams for i in range(1, num_streams)])
    cuts = sorted({0, *(int(row) + 1 for row in inner), len(ends)})
    return list(itertools.pairwise(cuts)) or [(0, 0)]


def stream(
    selections: Sequence[Selection],
    gathered: Callable[[float], None],
    batch_bytes: int = BATCH_BYTES,
    first: int = 0,
    stop: int | None = None,
) -> RecordStream:
    """Rows [first, stop), all by default, in the order of their header."""
    views = next((views for views, rows in selections if len(rows)), selections[0][0])
    kinds = views.kinds
    pieces = _pieces(selections, batch_bytes, first, sum(len(rows) for _, rows in selections) if stop is None else stop)
    return RecordStream(schema_of(kinds), _records(pieces, kinds, gathered))


def _pieces(
    selections: Iterable[Selection], batch_bytes: int, first: int, stop: int
) -> Iterator[tuple[PartRows, int, int]]:
    """What each record batch holds: rows of a part, of which there are other ones where a stream has a range."""
    begin = 0
    for views, rows in selections:
        start, end = max(first - begin, 0), min(stop - begin, len(rows))
        begin += len(rows)
        if start < end:
            part = PartRows(views, rows)
            yield from ((part, *cut) for cut in part.cuts(batch_bytes, start, end))


def _records(
    pieces: Iterable[tuple[PartRows, int, int]], kinds: Mapping[str, ColumnKind], gathered: Callable[[float], None]
) -> Iterator[tuple[pa.RecordBatch, bytes]]:
    for part, first, stop in pieces:
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

    def cuts(self, batch_bytes: int = BATCH_BYTES, first: int = 0, stop: int | None = None) -> list[tuple[int, int]]:
        """First and stop of pieces of rows [first, stop), all by default, that have at most `batch_bytes` each, or are
        one row."""
        ends = np.cumsum(bytes_per_row(self._views, self._rows))[:stop]
        cuts = [first]
        while cuts[-1] < len(ends):
            base = ends[cuts[-1] - 1] if cuts[-1] else 0
            end = int(np.searchsorted(ends, base + batch_bytes, side="right"))
            cuts.append(max(end, cuts[-1] + 1))
        return list(itertools.pairwise(cuts))


def bytes_per_row(views: Views, rows: Int64 | None = None) -> Int64:
    """Bytes of each of the rows at `rows` (None: of all) when these are sent together, [rows]."""
    return Header.of(views, np.arange(len(views.index)) if rows is None else rows).row_bytes
