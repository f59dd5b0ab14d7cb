"""Rows of sealed parts as Arrow record batches of bounded size, each with a checksum, and from those into a segment."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from rljob_worker.batch import Column
from rljob_worker.batch.arrow import columns_of_record, schema_of, to_record
from rljob_worker.batch.column_kind import ColumnKind
from rljob_worker.batch.gather import Runs, Taking, bytes_of
from rljob_worker.batch.row_index import RowIndex
from rljob_worker.databuffer.protocol.codec import encode, read_packed
from rljob_worker.databuffer.protocol.errors import Bug, Damaged, Malformed
from rljob_worker.databuffer.protocol.peer_side import RecordStream
from rljob_worker.databuffer.rows.arrangement import Header, check_kinds, write_rows
from rljob_worker.databuffer.rows.segment import Views
from rljob_worker.errors import PeerLost

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
        for piece in pieces(views, rows, batch_bytes):
            start = time.perf_counter()
            index, columns = piece.gather()
            checksum = rows_checksum(index, columns)
            record = to_record(index, columns, kinds)
            gathered(time.perf_counter() - start)
            yield record, checksum


def rows_checksum(index: RowIndex, columns: Mapping[str, Column]) -> bytes:
    """XXH3 (64 bits) of everything that rows consist of, columns by name."""
    digest = xxhash.xxh3_64()
    for values in index.columns().values():
        digest.update(bytes_of(values))
    for _, column in sorted(columns.items()):
        if column.offsets is not None:
            digest.update(bytes_of(column.offsets))
        digest.update(bytes_of(column.values))
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


@dataclass(frozen=True, slots=True, eq=False)
class RowPiece:
    """Some rows of a part for one record batch: by row, and the groups whose own columns come with these rows."""

    views: Views
    by_row: Runs
    by_group: Runs

    def __len__(self) -> int:
        return len(self.by_row.source)

    def gather(self) -> tuple[RowIndex, dict[str, Column]]:
        """The rows, over the same memory where they are neighbours there.

        What is stored per group is there only if no earlier piece has it.
        """
        known: list[tuple[Column, Taking]] = []
        columns = {name: self._gathered(column, known) for name, column in self.views.columns.items()}
        return self.views.index.take(self.by_row.source), columns

    def _gathered(self, column: Column, known: list[tuple[Column, Taking]]) -> Column:
        """Most columns have rows as long as another's: what is worked out for one is right for both."""
        runs = self.by_group if column.per_group else self.by_row
        if column.offsets is None:
            return column.gather(runs, len(self), may_view=True)
        taking = next((item for other, item in known if other.has_rows_like(column)), None)
        if taking is None:
            taking = Taking(column.offsets, runs, len(self))
            known.append((column, taking))
        return replace(column, values=taking.values(column.values, may_view=True), offsets=taking.offsets)


def pieces(views: Views, rows: Int64, batch_bytes: int = BATCH_BYTES) -> list[RowPiece]:
    """The rows at `rows` cut so that a piece has at most `batch_bytes`, or is one row."""
    groups = views.index.group_runs(rows)
    return [
        RowPiece(views, Runs.taking(rows[first:stop]), groups.within(first, stop))
        for first, stop in _cuts(bytes_per_row(views, rows), batch_bytes)
    ]


def _cuts(sizes: Int64, batch_bytes: int) -> list[tuple[int, int]]:
    """First and stop of every piece."""
    ends = np.cumsum(sizes)
    cuts = [0]
    while cuts[-1] < len(sizes):
        base = ends[cuts[-1] - 1] if cuts[-1] else 0
        stop = int(np.searchsorted(ends, base + batch_bytes, side="right"))
        cuts.append(max(stop, cuts[-1] + 1))
    return list(itertools.pairwise(cuts))


def bytes_per_row(views: Views, rows: Int64 | None = None) -> Int64:
    """Bytes of each of the rows at `rows` (None: of all) when these are sent together, [rows]."""
    return Header.of(views, np.arange(len(views.index)) if rows is None else rows).row_bytes


class Landing:
    """Takes the record batches of `stream.stream` one after the other, in the order of the host's offer."""

    def __init__(self, header: Header, target: Views, rows: Int64, what: str) -> None:
        """rows: of the segment, that the rows of the header become, [rows]. what: is said in errors."""
        self._header = header
        self._target = target
        self._rows = rows
        self._what = what
        self._done = 0

    def take(self, record: pa.RecordBatch, checksum: bytes) -> None:
        """Raises Damaged, PeerLost when more rows come than were offered, Bug when they are others than those."""
        index, columns = self._undamaged(record, checksum)
        stop = self._done + len(index)
        if stop > len(self._rows):
            raise PeerLost(f"more rows came of {self._what} than the {len(self._rows)} that were offered")
        self._check(self._header.take(np.arange(self._done, stop)), index, columns)
        write_rows(self._target, self._rows[self._done : stop], Views(index, columns), np.arange(len(index)))
        self._done = stop

    def end(self) -> None:
        """Nothing more comes. Raises PeerLost when not all rows have."""
        if self._done != len(self._rows):
            raise PeerLost(f"the rows of {self._what} ended after {self._done} of {len(self._rows)}")

    def _undamaged(self, record: pa.RecordBatch, checksum: bytes) -> tuple[RowIndex, dict[str, Column]]:
        if not self._done and not record.schema.equals(schema_of(self._header.kinds), check_metadata=True):
            # not named: a damaged name may be no text
            raise Damaged(f"{self._what}: other columns came than were offered, or of other types")
        try:
            index, columns = columns_of_record(record, self._header.kinds)
            result = rows_checksum(index, columns)
        except (ValueError, IndexError, pa.ArrowException) as error:  # offsets or lengths that lead nowhere
            raise Damaged(f"{self._what}: rows came damaged: {error}") from error
        if result != checksum:
            raise Damaged(
                f"{self._what}: rows came damaged: checksum {result.hex()}, sent was {checksum.hex() or 'none'}"
            )
        return index, columns

    def _check(self, announced: Header, index: RowIndex, columns: dict[str, Column]) -> None:
        """What has come is what the header tells."""
        for name, came, said in zip(
            ("row", "group", "number of tokens"),
            index.columns().values(),
            announced.index.columns().values(),
            strict=True,
        ):
            self._refuse(np.flatnonzero(came != said), name, came, said)
        firsts = index.group_runs(np.arange(len(index))).target
        for name, column in columns.items():
            if column.offsets is None:
                continue
            self._refuse(
                np.flatnonzero(column.lengths != announced.lengths[name]),
                f"length of {name}",
                column.lengths,
                announced.lengths[name],
            )
            if column.per_group and column.lengths[firsts].sum() != len(column.values):
                raise Bug(f"{self._what}: column {name}: values of a group came with another row than its first")

    def _refuse(self, wrong: Int64, what: str, came: NDArray[Any], said: NDArray[Any]) -> None:
        if len(wrong):
            at = wrong[0]
            raise Bug(f"{self._what}: {what} {int(came[at])} came in the place of {what} {int(said[at])}")
