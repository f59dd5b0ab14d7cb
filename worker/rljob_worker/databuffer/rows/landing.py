"""Record batches of a host's rows on their way into a segment: each is checked, and its values go to their places."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rljob_worker.batch import Column
from rljob_worker.batch.arrow import columns_of_record, schema_of
from rljob_worker.batch.gather import Runs, Stretches, offsets_of
from rljob_worker.batch.row_index import INDEX_COLUMNS, RowIndex
from rljob_worker.databuffer.protocol.errors import Bug, Damaged
from rljob_worker.databuffer.rows.arrangement import Header, moves
from rljob_worker.databuffer.rows.segment import Views
from rljob_worker.databuffer.rows.stream import rows_checksum
from rljob_worker.errors import PeerLost

Int64 = NDArray[np.int64]

_INDEX_WORDS = dict(zip(INDEX_COLUMNS, ("row", "group", "number of tokens"), strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class _AlikeColumns:
    """Columns whose values go to the same places."""

    names: list[str]
    offsets: Int64 | None
    """Where the values of each row begin in the stream, as the offer says, [rows + 1]; None: a row is one value."""
    stretches: Stretches

    def stretches_within(self, first: int, stop: int) -> Stretches:
        """Where the values of rows [first, stop) go, counted from the first of them."""
        if self.offsets is None:
            return self.stretches.of_source(first, stop)
        return self.stretches.of_source(int(self.offsets[first]), int(self.offsets[stop]))


class Landing:
    """Takes the record batches of `stream.stream` one after the other, in the order of the host's offer."""

    def __init__(
        self, header: Header, target: Views, rows: Int64, what: str, first: int = 0, stop: int | None = None
    ) -> None:
        """rows: of the segment, that the rows of the header become, [rows]. what: is said in errors. first, stop: the
        rows of the header that come; all by default."""
        self._header = header
        self._target = target
        self._rows = rows
        self._what = what
        self._first = self._done = first
        self._stop = len(rows) if stop is None else stop
        self._per_group = [name for name, kind in header.kinds.items() if kind.per_group]
        self._columns = self._alike_columns()

    def take(self, record: pa.RecordBatch, checksum: bytes) -> None:
        """Raises Damaged, PeerLost when more rows come than were offered, Bug when they are others than those."""
        index, columns = self._undamaged(record, checksum)
        first, stop = self._done, self._done + len(index)
        if stop > self._stop:
            raise PeerLost(f"more rows came of {self._what} than the {self._stop - self._first} that were asked for")
        self._check(first, stop, index, columns)
        for alike in self._columns:
            stretches = alike.stretches_within(first, stop)
            for name in alike.names:
                stretches.copy(self._target.columns[name].values, columns[name].values)
        self._done = stop

    def end(self) -> None:
        """Nothing more comes. Raises PeerLost when not all rows have."""
        if self._done != self._stop:
            raise PeerLost(f"the rows of {self._what} ended after {self._done} of {self._stop}")

    def _alike_columns(self) -> list[_AlikeColumns]:
        lengths, num_rows = self._header.lengths, len(self._rows)
        offsets = {name: offsets_of(lengths[name]) if name in lengths else None for name in self._header.kinds}
        # rows that bring what is stored per group, and where their groups begin
        bringing = np.flatnonzero(sum((lengths[name] for name in self._per_group), np.zeros(num_rows, np.int64)))
        by_group = Runs.of(bringing, self._target.index.head_of(self._rows[bringing]))
        found = moves(self._target, offsets, Runs.of(np.arange(num_rows), self._rows), by_group)
        return [_AlikeColumns(names, offsets[names[0]], stretches) for stretches, names in found]

    def _undamaged(self, record: pa.RecordBatch, checksum: bytes) -> tuple[RowIndex, dict[str, Column]]:
        if self._done == self._first and not record.schema.equals(schema_of(self._header.kinds), check_metadata=True):
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

    def _check(self, first: int, stop: int, index: RowIndex, columns: dict[str, Column]) -> None:
        """What has come is what the header tells."""
        announced = self._header.index.within(first, stop).columns()
        for name, came in index.columns().items():
            self._refuse(_INDEX_WORDS[name], came, announced[name])
        for name, lengths in self._header.lengths.items():
            self._refuse(f"length of {name}", columns[name].lengths, lengths[first:stop])
        if self._per_group:
            firsts = index.group_runs(np.arange(len(index))).target
            for name in self._per_group:
                if columns[name].lengths[firsts].sum() != len(columns[name].values):
                    raise Bug(f"{self._what}: column {name}: values of a group came with another row than its first")

    def _refuse(self, what: str, came: NDArray[Any], said: NDArray[Any]) -> None:
        wrong = came != said
        if wrong.any():
            at = int(wrong.argmax())
            raise Bug(f"{self._what}: {what} {int(came[at])} came in the place of {what} {int(said[at])}")
