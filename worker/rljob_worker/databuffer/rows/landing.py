"""Rows of one host on their way into a segment: what comes is checked against the offer and copied to its place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rljob_worker.arrow_batch import columns_of, schema_of
from rljob_worker.batch import Column
from rljob_worker.databuffer.protocol.errors import Bug, Damaged
from rljob_worker.databuffer.rows.arrangement import Header, place
from rljob_worker.databuffer.rows.segment import Views
from rljob_worker.databuffer.rows.stream import checksum_of
from rljob_worker.errors import PeerLost
from rljob_worker.row_index import RowIndex

Int64 = NDArray[np.int64]


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
        place(self._target, self._rows[self._done : stop], Views(index, columns), np.arange(len(index)))
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
            index, columns = columns_of(record, self._header.kinds)
            found = checksum_of(index, columns)
        except (ValueError, IndexError, pa.ArrowException) as error:  # offsets or lengths that lead nowhere
            raise Damaged(f"{self._what}: rows came damaged: {error}") from error
        if found != checksum:
            raise Damaged(
                f"{self._what}: rows came damaged: checksum {found.hex()}, sent was {checksum.hex() or 'none'}"
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
