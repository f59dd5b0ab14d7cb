"""An owner of leases that guests generate: it answers their questions, takes what they deliver, and gives again what a
lost one had.

A question that an owner cannot answer is held. An owner that comes to have leases that nobody who asks here may take
sends word round the owners: who holds questions sends them there, and everybody remembers it for questions that are
still to come.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from msgspec.structs import replace

from rljob_worker.databuffer.leases.deliveries import Deliveries, Delivery
from rljob_worker.databuffer.leases.guest_ledger import Generator, GuestLedger
from rljob_worker.databuffer.leases.held_requests import HeldRequests
from rljob_worker.databuffer.leases.late_leases import SHOWN, holders_words, missing_words
from rljob_worker.databuffer.leases.progress import StepProgress
from rljob_worker.databuffer.links.links import Links
from rljob_worker.databuffer.protocol import peer_side as say
from rljob_worker.databuffer.protocol.errors import require
from rljob_worker.databuffer.protocol.worker_answers import Complete, DeliveredLease, GuestFigures
from rljob_worker.databuffer.protocol.worker_calls import NextDelivery, OpenLeases, OpenValidation, ReleaseDelivery
from rljob_worker.databuffer.routes.guest_route import VALIDATION_PIECES, GuestRoute, LeaseId
from rljob_worker.databuffer.routes.hosts import Host, WorkerId
from rljob_worker.databuffer.store.monitor import Monitor
from rljob_worker.errors import PeerLost

log = logging.getLogger(__name__)

Later = Callable[[float, Callable[[], None]], None]


class LeaseOwner:
    """Nothing here waits: questions are held, and whatever makes leases free answers them."""

    deliveries: Deliveries

    def __init__(
        self,
        here: Host,
        route: GuestRoute,
        *,
        monitor: Monitor,
        links: Links,
        later: Later,
        lease_seconds: float,
        version_of: Callable[[LeaseId, int], int],
        complete: Callable[[str, int], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """version_of: of a lease, where the job went on that has no version older than the number. complete: called
        with a stage and a step once all leases of these are here, of this host's workers."""
        self.route = route
        self._here, self._monitor, self._links, self._later = here, monitor, links, later
        self._version_of, self._complete, self._clock = version_of, complete, clock
        self.ledger = GuestLedger(lambda step: route.leases_of(here, step), lease_seconds)
        self._oldest_version = 0
        self._last_validation: int | None = None
        self._held = HeldRequests()
        self._guests: dict[Host, None] = {}
        """Those that ask here first, and are there."""
        self._num_lost = 0
        self._progress = StepProgress(lambda stage: route.num_owned(stage, here))
        self._progress_at = clock()
        self._is_timed = False

    # ---- workers of this host

    def open(self, request: OpenLeases) -> None:
        """Leases of steps up to `request.last` may be taken."""
        with self._monitor.change():
            self._oldest_version = request.oldest_version
            self.ledger.open(request.first, request.last)
        self._serve()

    def open_validation(self, request: OpenValidation) -> None:
        """Pieces of the validation of a step may be taken. Each worker of the host says so, the first one counts."""
        with self._monitor.change():
            self._oldest_version = request.oldest_version
            if self._last_validation is None or request.step > self._last_validation:
                self._last_validation = request.step
                self.ledger.add(self.route.leases_in(VALIDATION_PIECES, self._here, request.step))
        self._serve()

    def want(self, worker: WorkerId, request: NextDelivery) -> None:
        """A worker asks for the rows of a step: what was left with guests is fetched now."""
        with self._monitor.change():
            if self._progress.want(request.stage, worker, request.step):
                self._progress_at = self._clock()
                for lease in self._leases_of(worker, request):
                    self._begin(lease)

    def next(self, worker: WorkerId, request: NextDelivery, *, is_everywhere: bool) -> DeliveredLease | Complete | None:
        """A lease that the worker has not had; under the lock. is_everywhere: whether all owners have all of theirs."""
        leases = self._leases_of(worker, request)
        for lease in leases:
            delivery = self.deliveries.kept(lease)
            if delivery is not None and self._progress.give(lease):
                assert delivery.segment is not None
                return DeliveredLease(
                    index=lease.index,
                    guest=str(delivery.generator),
                    offset=delivery.segment.offset,
                    contents=delivery.contents,
                    report=delivery.report,
                )
        if is_everywhere and self._progress.are_copied(leases):
            return Complete(num_chunks=len(leases))
        return None

    def release(self, worker: WorkerId, request: ReleaseDelivery) -> None:
        """A worker has copied a lease; a step whose leases are all copied is over."""
        lease = LeaseId(request.step, request.index, worker.rank, request.stage)
        with self._monitor.change():
            is_over = self._progress.copied(lease)
            self.deliveries.release(lease)
            if is_over:
                self.ledger.forget(lease.stage, lease.step)

    def idle_seconds(self) -> float:
        """Seconds since something was delivered here, or a step was asked for."""
        with self._monitor.look():
            return self._clock() - self._progress_at

    def figures(self) -> GuestFigures:
        with self._monitor.look():
            counts = self.ledger.counts
            return GuestFigures(
                num_there=len(self._guests),
                given_again=counts.given_again,
                dropped_late=counts.dropped_late,
                num_lost=self._num_lost,
            )

    def explain(self, worker: WorkerId, request: NextDelivery) -> str:
        """What a worker waits for, and who has it."""
        with self._monitor.look():
            leases, there = self._leases_of(worker, request), sorted(self._guests)
            missing = missing_words(self.ledger, leases, there, self._clock())
        return f"{worker} waited for rows of {request.stage}, step {request.step}: {missing}"

    # ---- guests and other owners

    def hear_hello(self, sender: Host, message: say.GuestHello) -> None:
        require(self.route.home(sender) == self._here, f"host {sender} has another owner to ask first")
        with self._monitor.change():
            self._guests[sender] = None
        self._links.watch([sender])

    def hear_requested(self, sender: Host, message: say.LeaseRequested) -> None:
        """From a generator, or from an owner that has nothing for it."""
        guest = Host.named(message.guest)
        is_first = sender == guest and not message.is_passed_on and self.route.home(guest) == self._here
        is_passed_on = sender in self.route.owners and message.is_passed_on
        is_one = 0 <= message.generator < self.route.generators_per_guest and self.route.is_guest(guest)
        require(is_one and (is_first or is_passed_on), f"{message} is not for host {self._here}")
        with self._monitor.change():
            self._held.add(message)
        self._serve(message)

    def hear_free(self, sender: Host, message: say.LeasesFree) -> None:
        """Another owner has leases: held questions go there, as many as it may answer."""
        require(sender in self.route.owners, f"host {sender} owns nothing")
        free = Host.named(message.owner)
        if free == self._here:
            return
        with self._monitor.change():
            asks, left = self._held.send_to(free, message.num_leases)
        self._links.send(free, *asks)
        if left and self.route.owner_after(self._here) != free:
            self._links.send(self.route.owner_after(self._here), replace(message, num_leases=left))

    def hear_returned(self, sender: Host, message: say.LeaseReturned) -> None:
        lease, generator = self._about(sender, message)
        with self._monitor.change():
            self.ledger.give_back(lease, generator)
            self.deliveries.withdraw(lease, generator)
            self._begin(lease)
            self._mind(sender)
        self._serve()

    def hear_delivered(self, sender: Host, message: say.LeaseDelivered) -> None:
        """A guest has the rows of a lease. Raises Malformed for one that it was not given, or has delivered before."""
        lease, generator = self._about(sender, message)
        delivery = Delivery.of(lease, generator, message)
        with self._monitor.change():
            is_needed = self.ledger.offer(lease, generator)
            if is_needed:
                self.deliveries.offer(delivery)
                self._begin(lease)
            else:
                self._links.send(sender, _taken(lease, generator))
                self._mind(sender)

    def lose(self, guest: Host, error: PeerLost | None) -> None:
        """A guest is gone, by an error or because it said so."""
        with self._monitor.change():
            was_there = self._guests.pop(guest, 0) is None
            self._num_lost += was_there and error is not None
            self._held.lose(guest)
            leases = self.ledger.lose(guest)
            for lease in leases:
                for number in range(self.route.generators_per_guest):
                    self.deliveries.withdraw(lease, Generator(guest, number))
                self._begin(lease)
        if error is not None and (was_there or leases):
            log.warning("generator %s is lost, %d leases are given again: %s", guest, len(leases), error)
        if was_there:
            lost = say.GuestLost(str(guest), "" if error is None else str(error))
            for owner in self.route.owners:
                if owner != self._here:
                    self._links.send(owner, lost)
        self._serve()

    def hear_lost(self, sender: Host, message: say.GuestLost) -> None:
        """The owner that a guest asks first has lost it: its questions that are held here are void, and so is its link.
        What its next life asks comes after this, by the same owner."""
        guest = Host.named(message.guest)
        require(sender == self.route.home(guest), f"host {guest} has another owner to ask first than host {sender}")
        with self._monitor.change():
            self._held.lose(guest)
        if message.cause:  # one that leaves says so itself, after its last rows
            self._links.end_guest(guest, PeerLost(message.cause))

    def arrived(self, delivery: Delivery) -> bool:
        """The rows of a lease are here; whether they are kept. Under the lock."""
        lease, generator = delivery.lease, delivery.generator
        if self.ledger.first_offer(lease) != generator:
            return False
        others = self.ledger.keep(lease, generator)
        self._progress_at = self._clock()
        for one in (generator, *others):
            self._links.send(one.guest, _taken(lease, one))
            self._mind(one.guest)
        for one in others:
            self.deliveries.withdraw(lease, one)
        if self._progress.arrived(lease):
            self._complete(lease.stage, lease.step)
        return True

    # ---- how

    def _leases_of(self, worker: WorkerId, request: NextDelivery) -> list[LeaseId]:
        num_leases = self.route.num_leases(request.stage, worker.rank)
        return [LeaseId(request.step, index, worker.rank, request.stage) for index in range(num_leases)]

    def _about(self, sender: Host, message: say.LeaseMessage) -> tuple[LeaseId, Generator]:
        lease = LeaseId(message.step, message.index, message.rank, message.stage)
        is_mine = self.route.is_lease(lease) and self.route.owner_of(lease) == self._here
        is_guest = self.route.is_guest(sender) and 0 <= message.generator < self.route.generators_per_guest
        require(is_mine and is_guest, f"host {self._here} did not give {lease} to host {sender}")
        return lease, Generator(sender, message.generator)

    def _begin(self, lease: LeaseId) -> None:
        """Fetch the first of what was offered for a lease, if that is to be done now. Under the lock."""
        generator = self.ledger.first_offer(lease)
        if generator is not None:
            self.deliveries.begin(lease, generator, is_wanted=self._progress.is_wanted(lease))

    def _serve(self, newest: say.LeaseRequested | None = None) -> None:
        """Answer questions while there are leases. newest: what has just come, and may go to another owner."""
        sent, free = list[tuple[Host, say.GuestMessage]](), 0
        with self._monitor.change():
            now = self._clock()

            def answer(ask: say.LeaseRequested) -> bool:
                generator = Generator(Host.named(ask.guest), ask.generator)
                lease = self.ledger.take(generator, now)
                if lease is not None:  # or all that is left is late with this guest itself
                    sent.append((generator.guest, self._assigned(lease, generator)))
                return lease is not None

            self._held.answer_all(lambda: self.ledger.has_any(now), answer)
            if newest is not None and (passed_on := self._held.pass_on(newest)) is not None:
                sent.append(passed_on)
            if newest is None and len(self.route.owners) > 1:  # what is held here may be of those that are late with it
                free = self.ledger.num_free(now)
            self._time(now)
        for host, message in sent:
            self._links.send(host, message)
        self._links.watch(sorted({host for host, _ in sent if self.route.is_guest(host)}))
        if free:
            self._links.send(self.route.owner_after(self._here), say.LeasesFree(str(self._here), free))

    def _assigned(self, lease: LeaseId, generator: Generator) -> say.LeaseAssigned:
        version = self._version_of(lease, self._oldest_version)
        return say.LeaseAssigned(lease.stage, lease.step, lease.rank, lease.index, generator.number, version)

    def _mind(self, guest: Host) -> None:
        """A guest that has nothing of this owner may be silent, unless it asks here first. Under the lock."""
        if guest not in self._guests and not self.ledger.given_to(guest):
            self._links.unwatch(guest)

    def _time(self, now: float) -> None:
        """Look again when a lease may be late. Under the lock."""
        due = self.ledger.due(now)
        if due is not None and not self._is_timed:
            self._is_timed = True
            self._later(due, self._look_for_late)

    def _look_for_late(self) -> None:
        with self._monitor.change():
            self._is_timed = False
            now = self._clock()
            words = [holders_words(self.ledger, lease, now) for lease in self.ledger.late(now)]
        if words:
            log.warning("late, and given to others as well: %s", "; ".join(words[:SHOWN]))
        self._serve()


def _taken(lease: LeaseId, generator: Generator) -> say.LeaseTaken:
    return say.LeaseTaken(lease.stage, lease.step, lease.rank, lease.index, generator.number)
