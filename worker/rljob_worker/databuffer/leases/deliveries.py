"""Rows of leases on their way from a guest to the arena of the owner, and there until the owner's worker has them.

A lease of the step that a worker asks for is fetched as soon as there is room. One of a later step is fetched ahead
where it leaves free what the rows of the largest step take; otherwise its guest keeps it until that step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from rljob_worker.databuffer.leases.guest_ledger import Generator
from rljob_worker.databuffer.links.links import Links
from rljob_worker.databuffer.protocol.codec import read_contents
from rljob_worker.databuffer.protocol.contents import Contents
from rljob_worker.databuffer.protocol.errors import Elsewhere, require
from rljob_worker.databuffer.protocol.peer_side import LeaseDelivered, LeaseTicket
from rljob_worker.databuffer.routes.guest_route import LeaseId
from rljob_worker.databuffer.rows.byte_stream import Bytes, Filling
from rljob_worker.databuffer.store.monitor import Monitor
from rljob_worker.databuffer.store.segments import Item, Segment, SegmentReader, Segments
from rljob_worker.databuffer.work import Work
from rljob_worker.errors import DeadlineExceeded, PeerLost

STREAM_SECONDS = 60.0
"""Longest that the rows of a lease may take."""
PAUSE_SECONDS = 0.1
"""After a stream that broke."""
MAX_DAMAGES = 3
"""A guest whose rows have come damaged as often is given up."""


@dataclass(slots=True, eq=False)
class Delivery:
    """Rows of a lease that a guest has made."""

    lease: LeaseId
    generator: Generator
    contents: Contents
    report: bytes
    num_bytes: int
    checksum: int
    table: bytes
    segment: Segment | None = None
    """Its room here."""
    is_begun: bool = False
    """Whether it is fetched, or waits for room to be."""
    broken_since: float | None = None
    num_damages: int = 0

    @staticmethod
    def of(lease: LeaseId, generator: Generator, message: LeaseDelivered) -> Delivery:
        """Raises Malformed for a table of contents of more bytes than there are."""
        contents: Contents = read_contents(message.contents)
        require(contents.num_bytes == message.num_bytes and fits(contents), f"the contents of {lease} cannot be so")
        return Delivery(
            lease, generator, contents, message.report, message.num_bytes, message.checksum, message.contents
        )


class Deliveries:
    """Brings rows here. Calls are made under the lock of the monitor, but for `_fetch`."""

    def __init__(
        self,
        segments: Segments,
        memory: Bytes,
        *,
        monitor: Monitor,
        links: Links,
        streams: Work,
        later: Callable[[float, Callable[[], None]], None],
        retry_seconds: float,
        step_bytes: int | None,
        arrived: Callable[[Delivery], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """step_bytes: as in `Consuming`; None fetches nothing ahead. arrived: called under the lock with a delivery
        that is here to the last byte; whether it is kept."""
        self._segments, self._memory = segments, memory
        self._monitor, self._links, self._streams, self._later = monitor, links, streams, later
        self._retry_seconds, self._step_bytes = retry_seconds, step_bytes
        self._arrived, self._clock = arrived, clock
        self._offered: dict[tuple[LeaseId, Generator], Delivery] = {}
        self._kept: dict[LeaseId, Delivery] = {}

    def offer(self, delivery: Delivery) -> None:
        self._offered[delivery.lease, delivery.generator] = delivery

    def withdraw(self, lease: LeaseId, generator: Generator) -> None:
        """A delivery is not needed, or its guest is gone."""
        delivery = self._offered.pop((lease, generator), None)
        if delivery is not None and delivery.segment is not None and not delivery.is_begun:
            self._segments.drop(delivery.segment)

    def begin(self, lease: LeaseId, generator: Generator, *, is_wanted: bool) -> None:
        """Fetch what was offered, if that may be now. Raises DeadlineExceeded where it can never have room."""
        delivery = self._offered.get((lease, generator))
        if delivery is None or delivery.is_begun:
            return
        item = Item(lease.stage, lease.step, f"rank {lease.rank}, lease", lease.index)
        if is_wanted:
            delivery.is_begun = True
            self._segments.refuse_hopeless(item, delivery.num_bytes, [], "")
            self._segments.when_room(partial(self._take_room, delivery, item))
        elif self._has_room_ahead(delivery.num_bytes):
            delivery.is_begun = self._take_room(delivery, item)

    def kept(self, lease: LeaseId) -> Delivery | None:
        """Rows that are here."""
        return self._kept.get(lease)

    def release(self, lease: LeaseId) -> None:
        """The worker has copied the rows."""
        delivery = self._kept.pop(lease)
        assert delivery.segment is not None
        self._segments.release(delivery.segment, SegmentReader.rank(lease.rank))

    def _has_room_ahead(self, num_bytes: int) -> bool:
        if self._step_bytes is None:
            return False
        return self._segments.memory.largest_free - num_bytes >= self._step_bytes

    def _take_room(self, delivery: Delivery, item: Item) -> bool:
        if not self._is_offered(delivery):
            return True
        delivery.segment = self._segments.try_reserve(item, delivery.num_bytes)
        if delivery.segment is None:
            return False
        self._submit(delivery)
        return True

    def _is_offered(self, delivery: Delivery) -> bool:
        return self._offered.get((delivery.lease, delivery.generator)) is delivery

    def _submit(self, delivery: Delivery) -> None:
        what = f"fetching {delivery.lease} from host {delivery.generator.guest}"
        self._streams.submit(what, lambda: self._fetch(delivery))

    # ---- on a thread of the streams

    def _fetch(self, delivery: Delivery) -> None:
        lease, guest = delivery.lease, delivery.generator.guest
        assert delivery.segment is not None
        room = self._memory[delivery.segment.offset : delivery.segment.offset + delivery.num_bytes]
        filling = Filling(room, delivery.table)
        try:
            ticket = LeaseTicket(lease.stage, lease.step, lease.rank, lease.index)
            self._links.stream(guest, ticket, STREAM_SECONDS, filling.take)
            result = filling.end()
        except (PeerLost, DeadlineExceeded) as error:
            self._again(delivery, error)
            return
        if result == delivery.checksum:
            self._end(delivery)
            return
        delivery.num_damages += 1
        if delivery.num_damages == MAX_DAMAGES:
            self._links.end_guest(guest, PeerLost(f"{lease} came damaged from host {guest} {MAX_DAMAGES} times"))
        self._again(delivery, None)

    def _again(self, delivery: Delivery, error: PeerLost | DeadlineExceeded | None) -> None:
        """Once more a little later, as long as its guest is there; one that does not give it is given up."""
        now, guest = self._clock(), delivery.generator.guest
        with self._monitor.change():
            if not self._is_offered(delivery):
                assert delivery.segment is not None
                self._segments.drop(delivery.segment)
                return
        delivery.broken_since = now if delivery.broken_since is None else delivery.broken_since
        is_lost = error is not None and now - delivery.broken_since >= self._retry_seconds
        if is_lost and not isinstance(error, Elsewhere):
            self._links.end_guest(guest, PeerLost(f"{delivery.lease} could not be had from host {guest}: {error}"))
        self._later(PAUSE_SECONDS, lambda: self._submit(delivery))

    def _end(self, delivery: Delivery) -> None:
        with self._monitor.change():
            segment = delivery.segment
            assert segment is not None
            is_kept = self._is_offered(delivery) and self._arrived(delivery)
            self._offered.pop((delivery.lease, delivery.generator), None)
            if not is_kept:
                self._segments.drop(segment)
                return
            segment.contents = delivery.contents
            self._kept[delivery.lease] = delivery
            self._segments.set_readers(segment, [SegmentReader.rank(delivery.lease.rank)])


def fits(contents: Contents) -> bool:
    """Whether all that a table of contents names lies inside of the segment."""
    return all(0 <= begin <= end <= contents.num_bytes for begin, end in _ranges(contents))


def _ranges(contents: Contents) -> Iterator[tuple[int, int]]:
    """Bytes from and to of everything that lies in a segment."""
    rows = contents.num_rows
    yield 0, 3 * 8 * rows
    for field in contents.fields:
        yield field.values_at, field.values_at + field.num_values * field.kind.item_bytes
        if field.offsets_at is not None:
            yield field.offsets_at, field.offsets_at + 8 * (rows + 1)
