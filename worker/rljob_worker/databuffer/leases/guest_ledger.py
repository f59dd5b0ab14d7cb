"""What one owner leases to guests, and what has come back: pure book-keeping, which every event changes at once.

    free ──taken──▶ given ──offered──▶ fetched ──kept──▶ done
      ▲               │                   │
      └── its guest is lost, or returns it ┘        given for long ──taken──▶ given to another one as well

A lease is done once, by the first delivery of it that is here to the last byte; later ones are dropped and counted.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from rljob_worker.databuffer.protocol.errors import require
from rljob_worker.databuffer.routes.guest_route import LeaseId
from rljob_worker.databuffer.routes.hosts import Host


@dataclass(frozen=True, slots=True, order=True)
class Generator:
    """A copy of the generating model on a guest."""

    guest: Host
    number: int

    def __str__(self) -> str:
        return str(self.guest) if self.number == 0 else f"{self.guest}/{self.number}"


@dataclass(slots=True)
class LeaseState:
    """One lease that is not free, or that was given before."""

    given: dict[Generator, float] = field(default_factory=dict)
    """Who generates it, since when."""
    offers: list[Generator] = field(default_factory=list)
    """Who has generated it; the first one's rows are fetched."""
    delivered: set[Host] = field(default_factory=set)
    """Guests that have offered it, whatever became of that."""
    is_done: bool = False

    @property
    def is_free(self) -> bool:
        return not self.is_done and not self.given and not self.offers


@dataclass(slots=True)
class LeaseCounts:
    """Since the owner began."""

    given_again: int = 0
    """Leases that came back, or were late."""
    dropped_late: int = 0
    """Deliveries of leases that were done."""


class GuestLedger:
    """Leases of one owner's ranks.

    leases_of: all leases of a step, in the order in which they are given. lease_seconds: after so long a lease is given
    to another guest as well.
    """

    def __init__(self, leases_of: Callable[[int], Iterable[LeaseId]], lease_seconds: float) -> None:
        self._leases_of, self._lease_seconds = leases_of, lease_seconds
        self._states: dict[LeaseId, LeaseState] = {}
        self._fresh: deque[LeaseId] = deque()
        self._returned: list[LeaseId] = []
        """A heap; what is in it may be free no more."""
        self._order: deque[tuple[float, LeaseId, Generator]] = deque()
        """Who was given what, in the order in which that may be late."""
        self._late: set[LeaseId] = set()
        """Leases that were late; what is in it may have come meanwhile."""
        self._of_guest: dict[Host, set[LeaseId]] = {}
        """Leases that a guest generates, and those of which its rows are to be fetched."""
        self._opened: int | None = None
        """The last step of which leases may be taken."""
        self._forgotten: dict[str, int] = {}
        """By stage: the last step that nobody needs any more."""
        self.counts = LeaseCounts()

    # ---- steps

    def open(self, first: int, last: int) -> None:
        """Leases of steps `first` to `last` may be taken, those that could before aside."""
        begin = first if self._opened is None else self._opened + 1
        if self._opened is None:
            self._forgotten |= {lease.stage: first - 1 for lease in self._leases_of(first)}
        for step in range(begin, last + 1):
            self._fresh.extend(self._leases_of(step))
        self._opened = max(last, begin - 1)

    def add(self, leases: Iterable[LeaseId]) -> None:
        """More leases that may be taken, besides those of steps."""
        self._fresh.extend(leases)

    def forget(self, stage: str, step: int) -> None:
        """Nobody needs a step of a stage, or those before it, any more."""
        self._forgotten[stage] = max(self._forgotten.get(stage, step), step)
        self._states = {lease: state for lease, state in self._states.items() if not self.is_over(lease)}
        of_guest = {guest: {one for one in mine if not self.is_over(one)} for guest, mine in self._of_guest.items()}
        self._of_guest = {guest: mine for guest, mine in of_guest.items() if mine}

    def is_over(self, lease: LeaseId) -> bool:
        """Whether a lease is of a step that nobody needs any more."""
        return lease.step <= self._forgotten.get(lease.stage, -1)

    # ---- giving

    def take(self, taker: Generator, now: float) -> LeaseId | None:
        """The next lease for a generator: one that came back, one that is late, or a fresh one."""
        lease = self._next_returned() or self._next_late(taker, now)
        if lease is None and self._fresh:
            lease = self._fresh.popleft()
        if lease is not None:
            self._state(lease).given[taker] = now
            self._order.append((now, lease, taker))
            self._of_guest.setdefault(taker.guest, set()).add(lease)
        return lease

    def late(self, now: float) -> dict[LeaseId, LeaseState]:
        """Leases that everybody who generates them has had for too long."""
        while self._order and now - self._order[0][0] >= self._lease_seconds:
            _, lease, _ = self._order.popleft()
            self._late.add(lease)
        self._late = {lease for lease in self._late if self._is_late(lease, now)}
        return {lease: self._states[lease] for lease in sorted(self._late)}

    def has_any(self, now: float) -> bool:
        """Whether somebody may take something."""
        self._drop_taken()
        return bool(self._fresh or self._returned or self.late(now))

    def num_free(self, now: float) -> int:
        """Leases that may be taken, about."""
        return len(self._fresh) + len(self._returned) + len(self.late(now))

    def due(self, now: float) -> float | None:
        """Seconds until a lease may be late; None while none is given."""
        while self._order and self._order[0][2] not in self.holders(self._order[0][1]):
            self._order.popleft()
        return max(0.0, self._order[0][0] + self._lease_seconds - now) if self._order else None

    def _next_returned(self) -> LeaseId | None:
        self._drop_taken()
        return heapq.heappop(self._returned) if self._returned else None

    def _drop_taken(self) -> None:
        while self._returned and not self._is_free(self._returned[0]):
            heapq.heappop(self._returned)

    def _is_free(self, lease: LeaseId) -> bool:
        return not self.is_over(lease) and self._state(lease).is_free

    def _next_late(self, taker: Generator, now: float) -> LeaseId | None:
        """The earliest that another guest is late with."""
        others = [
            lease for lease, state in self.late(now).items() if all(one.guest != taker.guest for one in state.given)
        ]
        if not others:
            return None
        self.counts.given_again += 1
        return min(others)

    def _is_late(self, lease: LeaseId, now: float) -> bool:
        state = self._states.get(lease)
        is_working = state is not None and bool(state.given) and not state.offers and not state.is_done
        return is_working and state is not None and now - max(state.given.values()) >= self._lease_seconds

    # ---- what comes back

    def offer(self, lease: LeaseId, generator: Generator) -> bool:
        """A generator has made the rows of a lease; False where they are late and not needed. Raises Malformed for a
        lease that it does not have, or has delivered before."""
        if self.is_over(lease):
            self.counts.dropped_late += 1
            return False
        state = self._state(lease)
        require(generator.guest not in state.delivered, f"host {generator.guest} delivered {lease} twice")
        require(generator in state.given, f"host {generator.guest} delivered {lease}, which it was not given")
        del state.given[generator]
        state.delivered.add(generator.guest)
        if state.is_done:
            self._has_no_more(lease, generator.guest)
            self.counts.dropped_late += 1
            return False
        state.offers.append(generator)
        return True

    def first_offer(self, lease: LeaseId) -> Generator | None:
        """Whose rows of a lease are to be fetched."""
        state = self._states.get(lease)
        return state.offers[0] if state is not None and state.offers and not state.is_done else None

    def keep(self, lease: LeaseId, generator: Generator) -> list[Generator]:
        """A generator's rows of a lease are here: it is done. Returns the others whose rows are not needed."""
        state = self._state(lease)
        assert not state.is_done and generator in state.offers, f"{lease} is done, or not of {generator}"
        others = [other for other in state.offers if other != generator]
        for offering in state.offers:
            self._has_no_more(lease, offering.guest)
        state.is_done, state.offers = True, []
        self.counts.dropped_late += len(others)
        return others

    def give_back(self, lease: LeaseId, generator: Generator) -> None:
        """A generator will not finish a lease. What is over, or was not given to it, is nothing."""
        state = self._states.get(lease)
        if state is None:
            return
        had = state.given.pop(generator, None) is not None
        if generator in state.offers:
            state.offers.remove(generator)
            had = True
        state.delivered.discard(generator.guest)
        self._has_no_more(lease, generator.guest)
        if had and state.is_free:
            self.counts.given_again += 1
            heapq.heappush(self._returned, lease)
        elif state.given:  # those who still have it may have been late before
            self._late.add(lease)

    def lose(self, guest: Host) -> list[LeaseId]:
        """A guest is gone: what it had is given again. Returns all leases that it had."""
        had = sorted(self._of_guest.pop(guest, ()))
        for lease in had:
            state = self._states[lease]
            for generator in [one for one in (*state.given, *state.offers) if one.guest == guest]:
                self.give_back(lease, generator)
        for state in self._states.values():
            state.delivered.discard(guest)
        return had

    # ---- for messages

    def given_to(self, guest: Host) -> bool:
        """Whether a guest has a lease, or rows that are still to be fetched."""
        return bool(self._of_guest.get(guest))

    def holders(self, lease: LeaseId) -> dict[Generator, float]:
        """Who generates a lease, since when."""
        state = self._states.get(lease)
        return {} if state is None else dict(state.given)

    def is_done(self, lease: LeaseId) -> bool:
        """Whether the rows of a lease are here."""
        state = self._states.get(lease)
        return state is not None and state.is_done

    def _has_no_more(self, lease: LeaseId, guest: Host) -> None:
        """A guest has nothing to do with a lease any more."""
        self._of_guest.get(guest, set()).discard(lease)

    def _state(self, lease: LeaseId) -> LeaseState:
        return self._states.setdefault(lease, LeaseState())
