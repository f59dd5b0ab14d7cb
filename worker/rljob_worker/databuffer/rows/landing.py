"""Rows of one host on their way into a segment: every value from the wire straight to its place."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rljob_worker.databuffer.protocol.codec import read_piece_head
from rljob_worker.databuffer.protocol.errors import Bug, Malformed
from rljob_worker.databuffer.protocol.peer_side import PieceHead
from rljob_worker.databuffer.protocol.streams import Portion
from rljob_worker.databuffer.rows.arrangement import Header, moves
from rljob_worker.databuffer.rows.segment import Views
from rljob_worker.errors import PeerLost
from rljob_worker.gather import Stretches, bytes_of, offsets_of

Int64 = NDArray[np.int64]
Array = NDArray[Any]


class Landing:
    """Takes the portions of `stream.stream` one after the other, in the order of the host's offer."""

    def __init__(self, header: Header, target: Views, rows: Int64, what: str) -> None:
        """rows: of the segment, that the rows of the header become, [rows]. what: is said in errors."""
        self._header = header
        self._target = target
        self._rows = rows
        self._what = what
        self._done = 0

    def take(self, portion: Portion) -> None:
        """Raises Malformed, PeerLost when more rows come than were offered, Bug when they are others."""
        head = read_piece_head(portion.head)
        if len(head.row_ids) % 8:
            raise Malformed(f"{self._what}: {len(head.row_ids)} bytes are no row ids")
        row_ids = np.frombuffer(head.row_ids, np.int64)
        stop = self._done + len(row_ids)
        if stop > len(self._rows):
            raise PeerLost(f"more rows came of {self._what} than the {len(self._rows)} that were offered")
        announced = self._header.take(np.arange(self._done, stop))
        self._check(announced, row_ids, head, portion.num_bytes)
        self._bring(portion, announced, self._rows[self._done : stop])
        self._done = stop

    def end(self) -> None:
        """Nothing more comes. Raises PeerLost when not all rows have."""
        if self._done != len(self._rows):
            raise PeerLost(f"the rows of {self._what} ended after {self._done} of {len(self._rows)}")

    def _bring(self, portion: Portion, announced: Header, rows: Int64) -> None:
        offsets = {
            name: offsets_of(announced.lengths[name]) if name in announced.lengths else None
            for name in self._target.columns
        }
        by_column = moves(self._target, rows, announced.index, offsets, np.arange(len(rows)))
        places: list[memoryview] = []
        aside: list[tuple[Array, Stretches, Array]] = []
        for name in sorted(by_column):
            values, stretches = self._target.columns[name].values, by_column[name]
            found = stretches.targets(values)
            if found is None:  # many small places: all values of the column in one go, then each to its own
                count = announced.num_values(name)
                came = np.empty((count, *values.shape[1:]), values.dtype)
                aside.append((values, stretches, came))
                found = [bytes_of(came)]
            places += found
        if sum(map(len, places)) != portion.num_bytes:  # values of a group that came with another than its first row
            raise Bug(f"{self._what}: {portion.num_bytes} bytes came for places of {sum(map(len, places))}")
        portion.into(places)
        for values, stretches, came in aside:
            stretches.copy(values, came)

    def _check(self, announced: Header, row_ids: Int64, head: PieceHead, num_bytes: int) -> None:
        """What has come is what the header tells."""
        strange = np.flatnonzero(row_ids != announced.index.row_ids)
        if len(strange):
            came, expected = row_ids[strange[0]], announced.index.row_ids[strange[0]]
            raise Bug(f"{self._what}: row {int(came)} came in the place of row {int(expected)}")
        names = sorted(announced.kinds)
        expected_bytes = [announced.kinds[name].item_bytes * announced.num_values(name) for name in names]
        if len(head.num_bytes) != len(names) or sum(head.num_bytes) != num_bytes:
            raise Bug(f"{self._what}: {len(head.num_bytes)} columns came in {num_bytes} bytes, not {len(names)}")
        for name, came_bytes, said in zip(names, head.num_bytes, expected_bytes, strict=True):
            if came_bytes != said:
                rows = f"rows {int(row_ids[0])} to {int(row_ids[-1])}" if len(row_ids) else "no rows"
                raise Bug(f"{self._what}: column {name}: {rows} came with {came_bytes} bytes; their header said {said}")
