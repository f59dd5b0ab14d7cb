"""What a guest has of leases: those that its workers generate, and rows that wait for their owner to take them."""

from __future__ import annotations

from dataclasses import dataclass

from rljob_worker.databuffer.links.links import Links
from rljob_worker.databuffer.protocol import peer_side as say
from rljob_worker.databuffer.protocol.codec import encode
from rljob_worker.databuffer.protocol.errors import OutOfOrder, require
from rljob_worker.databuffer.protocol.worker_answers import GuestLease
from rljob_worker.databuffer.protocol.worker_calls import DeliverLease, ReserveLease
from rljob_worker.databuffer.routes.guest_route import GuestRoute, LeaseId
from rljob_worker.databuffer.routes.hosts import Host, WorkerId
from rljob_worker.databuffer.rows.byte_stream import Bytes, chunk_checksum
from rljob_worker.databuffer.store.monitor import Monitor
from rljob_worker.databuffer.store.segments import Item, Segment, Segments

NOTHING_MORE = GuestLease(stage="")


@dataclass(slots=True)
class _Work:
    """A lease that a generator of this host has."""

    lease: LeaseId
    version: int
    segment: Segment | None = None
    """Room for its rows, once it was asked for."""


class GuestLeases:
    """Leases of one guest. A lease that it did not ask for, or cannot do any more, goes back at once."""

    def __init__(
        self,
        here: Host,
        route: GuestRoute,
        num_workers: int,
        segments: Segments,
        memory: Bytes,
        *,
        monitor: Monitor,
        links: Links,
    ) -> None:
        self.home = route.home(here)
        self._here, self._route, self._num_workers = here, route, num_workers
        self._segments, self._memory = segments, memory
        self._monitor, self._links = monitor, links
        self._asking: set[int] = set()
        """Generators whose question is open."""
        self._working: dict[int, _Work] = {}
        """By generator: what it has been given."""
        self._shown: set[int] = set()
        """Generators whose worker knows of its lease."""
        self._made: dict[LeaseId, Segment] = {}
        self._is_over = False

    def start(self) -> None:
        """First words to the owner that is asked first."""
        self._links.send(self.home, say.GuestHello())
        self._links.watch([self.home])

    # ---- workers of this host

    def ask(self, worker: WorkerId) -> None:
        """Ask for a worker's next lease, unless that is done."""
        number = self._generator(worker)
        with self._monitor.change():
            if number in self._asking or self._is_over or (number in self._working and number not in self._shown):
                return
            if number in self._working:
                raise OutOfOrder(f"{worker} asks for a lease while it has {self._working[number].lease}")
            self._asking.add(number)
        self._links.send(self.home, say.LeaseRequested(str(self._here), number))

    def granted(self, worker: WorkerId) -> GuestLease | None:
        """The answer if it is there; under the lock."""
        number = self._generator(worker)
        if self._is_over:
            return NOTHING_MORE
        work = self._working.get(number)
        if work is None or number in self._shown:
            return None
        self._shown.add(number)
        lease, numbers = work.lease, self._route.numbers(work.lease)
        return GuestLease(
            stage=lease.stage,
            step=lease.step,
            rank=lease.rank,
            index=lease.index,
            version=work.version,
            first=numbers.start,
            end=numbers.stop,
        )

    def reserve(self, worker: WorkerId, request: ReserveLease) -> int | None:
        """Offset of room for the rows of a worker's lease, once there is some; under the lock."""
        work = self._work(worker)
        if work.segment is None:
            item = Item(request.stage, request.step, f"rank {request.rank}, lease", request.index)
            work.segment = self._segments.try_reserve(item, request.num_bytes)
        return None if work.segment is None else work.segment.offset

    def deliver(self, worker: WorkerId, request: DeliverLease) -> None:
        """The rows of a worker's lease are written: its owner may fetch them."""
        number, contents = self._generator(worker), encode(request.contents)
        num_bytes = request.contents.num_bytes
        checksum = chunk_checksum(self._memory[request.offset : request.offset + num_bytes], contents)
        with self._monitor.change():
            work = self._work(worker)
            if work.segment is None or work.segment.offset != request.offset:
                raise OutOfOrder(f"{worker} has no room at {request.offset}")
            self._forget(number)
            if self._is_over:
                self._segments.drop(work.segment)
                return
            work.segment.contents = request.contents
            self._made[work.lease] = work.segment
            lease = work.lease
        self._links.send(
            self._route.owner_of(lease),
            say.LeaseDelivered(
                lease.stage, lease.step, lease.rank, lease.index, number, contents, request.report, num_bytes, checksum
            ),
        )

    def give_back(self, worker: WorkerId) -> None:
        """A worker will not finish its lease."""
        with self._monitor.change():
            self._return(self._generator(worker))

    def stop(self) -> None:
        """This host is to end: what its workers have not made goes back, and nothing more is taken."""
        with self._monitor.change():
            for number in list(self._working):
                self._return(number)
            self._is_over = True

    def is_drained(self) -> bool:
        """Whether owners have everything that was made here; under the lock."""
        return not self._made

    # ---- owners

    def hear_assigned(self, sender: Host, message: say.LeaseAssigned) -> None:
        lease, number = _lease_of(message), message.generator
        is_real = self._route.is_lease(lease) and self._route.owner_of(lease) == sender
        require(is_real and 0 <= number < self._route.generators_per_guest, f"{lease} is not of host {sender}")
        with self._monitor.change():
            if number in self._asking and not self._is_over:
                self._asking.discard(number)
                self._working[number] = _Work(lease, message.version)
                return
        self._links.send(sender, _returned(lease, number))

    def hear_taken(self, sender: Host, message: say.LeaseTaken) -> None:
        """An owner has the rows of a lease, or does not need them."""
        with self._monitor.change():
            segment = self._made.pop(_lease_of(message), None)
            require(segment is not None, f"host {sender} took {_lease_of(message)}, which is not here")
            assert segment is not None
            self._segments.drop(segment)

    def owner_left(self, owner: Host) -> None:
        """The job is over for an owner: it takes no more rows, and the one that is asked first gives no more leases."""
        with self._monitor.change():
            gone = [lease for lease in self._made if self._route.owner_of(lease) == owner]
            for lease in gone:
                self._segments.drop(self._made.pop(lease))
            self._is_over |= owner == self.home

    def rows(self, ticket: say.LeaseTicket) -> Bytes:
        """The segment of a lease that was made here. Raises Malformed where it is not here."""
        with self._monitor.look():
            lease = LeaseId(ticket.step, ticket.index, ticket.rank, ticket.stage)
            require(lease in self._made, f"the rows of {lease} are not here")
            segment = self._made[lease]
            contents = segment.contents
            assert contents is not None
            return self._memory[segment.offset : segment.offset + contents.num_bytes]

    # ---- how

    def _generator(self, worker: WorkerId) -> int:
        number = self._route.generator_of(worker, self._num_workers)
        assert number is not None, f"{worker} leads no copy of the model"
        return number

    def _work(self, worker: WorkerId) -> _Work:
        number = self._generator(worker)
        if number not in self._shown:
            raise OutOfOrder(f"{worker} has no lease")
        return self._working[number]

    def _forget(self, number: int) -> None:
        del self._working[number]
        self._shown.discard(number)

    def _return(self, number: int) -> None:
        """Under the lock."""
        work = self._working.get(number)
        if work is not None:
            self._forget(number)
            if work.segment is not None:
                self._segments.drop(work.segment)
            self._links.send(self._route.owner_of(work.lease), _returned(work.lease, number))


def _lease_of(message: say.LeaseMessage) -> LeaseId:
    return LeaseId(message.step, message.index, message.rank, message.stage)


def _returned(lease: LeaseId, generator: int) -> say.LeaseReturned:
    return say.LeaseReturned(lease.stage, lease.step, lease.rank, lease.index, generator)
