"""What any Flight client with the job's token may read: the rows that producers of this host have put."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from rljob_worker.batch.arrow import schema_of, to_record
from rljob_worker.batch.column_kind import ColumnKind
from rljob_worker.databuffer.protocol.errors import OutOfOrder
from rljob_worker.databuffer.protocol.peer_side import PartTicket, RecordStream
from rljob_worker.databuffer.pull.edges import Edges, ProducerPart
from rljob_worker.databuffer.rows.stream import PartRows, rows_checksum
from rljob_worker.databuffer.store.monitor import Monitor
from rljob_worker.errors import DeadlineExceeded

READER_SECONDS = 60.0
"""How long a reader may take for one part."""


@dataclass(frozen=True, slots=True)
class PartInfo:
    """What is known of a part before it is read."""

    ticket: PartTicket
    schema: pa.Schema
    num_rows: int
    num_bytes: int


class ReadableParts:
    """A reader keeps nothing alive and holds nobody up: what it gets is copied, a piece at a time, while it is here."""

    def __init__(self, edges: Edges, monitor: Monitor, clock: Callable[[], float] = time.monotonic) -> None:
        self._edges = edges
        self._monitor = monitor
        self._clock = clock

    def parts(self) -> list[PartInfo]:
        """All that lie here now."""
        with self._monitor.look():
            return [
                _info_of(PartTicket(edge, state.step, number), part)
                for edge in self._edges.routes
                for state in self._edges.steps(edge)
                for number, part in sorted(state.parts.items())
            ]

    def part(self, ticket: PartTicket) -> PartInfo:
        """Raises OutOfOrder where it is not here."""
        with self._monitor.look():
            return _info_of(ticket, self._find(ticket))

    def stream(self, ticket: PartTicket) -> RecordStream:
        """Raises OutOfOrder where it is not here, also in the middle: once its consumers have it, it is given back."""
        with self._monitor.look():
            views = self._find(ticket).views
            part = PartRows(views, np.arange(len(views.index)))
        kinds = views.kinds
        return RecordStream(schema_of(kinds), self._records(ticket, part, kinds))

    def _records(
        self, ticket: PartTicket, part: PartRows, kinds: Mapping[str, ColumnKind]
    ) -> Iterator[tuple[pa.RecordBatch, bytes]]:
        end = self._clock() + READER_SECONDS
        for first, stop in part.cuts():
            if self._clock() > end:
                raise DeadlineExceeded(f"{ticket}: a reader may take {READER_SECONDS:g} s")
            with self._monitor.look():
                self._find(ticket)
                index, columns = part.gather(first, stop)
                columns = {name: replace(column, values=column.values.copy()) for name, column in columns.items()}
            yield to_record(index, columns, kinds), rows_checksum(index, columns)

    def _find(self, ticket: PartTicket) -> ProducerPart:
        """Under the lock."""
        if ticket.edge not in self._edges.routes:
            known = ", ".join(self._edges.routes) or "none"
            raise OutOfOrder(f"there is no edge {ticket.edge!r} in this job; its edges are {known}")
        state = self._edges.find(ticket.edge, ticket.step)
        if state is None or ticket.part not in state.parts:
            raise OutOfOrder(f"{ticket} is not here: not put yet, on another host, or taken by all its consumers")
        return state.parts[ticket.part]


def _info_of(ticket: PartTicket, part: ProducerPart) -> PartInfo:
    return PartInfo(ticket, schema_of(part.views.kinds), len(part.views.index), part.segment.num_bytes)
