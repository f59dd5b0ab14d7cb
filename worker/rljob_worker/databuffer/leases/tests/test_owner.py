"""Two owners of leases: what one has free, or was given to a guest that is lost, reaches guests that ask the other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rljob_worker.databuffer.leases.owner import LeaseOwner
from rljob_worker.databuffer.protocol import peer_side as say
from rljob_worker.databuffer.protocol.errors import Malformed
from rljob_worker.databuffer.protocol.worker_calls import OpenLeases
from rljob_worker.databuffer.routes.guest_route import GuestRoute
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.store.monitor import Monitor
from rljob_worker.errors import PeerLost

A, B = Host("train", 0), Host("train", 1)
EVEN, ODD, LATER = (Host("rollout", index) for index in range(3))
"""Guests: the even ones ask A first."""
LATE = 10.0
GONE = PeerLost("it did not answer")
ROUTE = GuestRoute(
    group="rollout",
    num_guests=3,
    generators_per_guest=1,
    owners=(A, B),
    ranks_per_owner=1,
    stages=("rollout",),
    batch_size=2,
    lease_groups=1,
)
"""One lease a step of each owner."""
HEARS: dict[type, Any] = {
    say.GuestHello: LeaseOwner.hear_hello,
    say.LeaseRequested: LeaseOwner.hear_requested,
    say.LeasesFree: LeaseOwner.hear_free,
    say.GuestLost: LeaseOwner.hear_lost,
}


class Owners:
    """Both, whose messages to each other arrive at once; what guests get is kept."""

    def __init__(self) -> None:
        self.now = 0.0
        self.given: list[tuple[Host, Host, int]] = []
        """To whom, by whom, of which step."""
        self._timed: list[Any] = []
        self._sent: list[tuple[Host, Host, Any]] = []
        self._of = {host: self._owner(host) for host in (A, B)}

    def _owner(self, here: Host) -> LeaseOwner:
        links = SimpleNamespace(
            send=lambda to, *messages: self._sent.extend((here, to, message) for message in messages),
            watch=lambda hosts: None,
            unwatch=lambda host: None,
            end_guest=lambda guest, error: self._of[here].lose(guest, error),
        )
        owner = LeaseOwner(
            here,
            ROUTE,
            monitor=Monitor(),
            links=links,  # type: ignore[arg-type]
            later=lambda seconds, call: self._timed.append(call),
            lease_seconds=LATE,
            version_of=lambda lease, oldest: 0,
            complete=lambda stage, step: None,
            clock=lambda: self.now,
        )
        owner.deliveries = SimpleNamespace(withdraw=lambda lease, generator: None)  # type: ignore[assignment]
        return owner

    def open(self, owner: Host, last: int = 1) -> None:
        self._of[owner].open(OpenLeases(first=1, last=last, oldest_version=0))
        self._carry()

    def ask(self, guest: Host) -> None:
        home = ROUTE.home(guest)
        self._sent += [(guest, home, say.GuestHello()), (guest, home, say.LeaseRequested(str(guest), 0))]
        self._carry()

    def lose(self, owner: Host, guest: Host, error: PeerLost | None = GONE) -> None:
        self._of[owner].lose(guest, error)
        self._carry()

    def hear(self, owner: Host, sender: Host, message: Any) -> None:
        HEARS[type(message)](self._of[owner], sender, message)
        self._carry()

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        timed, self._timed = self._timed, []
        for call in timed:
            call()
        self._carry()

    def _carry(self) -> None:
        while self._sent:
            sender, to, message = self._sent.pop(0)
            if isinstance(message, say.LeaseAssigned):
                self.given.append((to, sender, message.step))
            else:
                HEARS[type(message)](self._of[to], sender, message)


def with_question_held_elsewhere() -> Owners:
    """B's lease is with ODD, and a question of EVEN, which A passed on, waits there."""
    owners = Owners()
    owners.open(B)
    owners.ask(ODD)
    owners.ask(EVEN)
    assert owners.given == [(ODD, B, 1)]
    return owners


@pytest.mark.parametrize("error", [GONE, None])
def test_a_question_of_a_guest_that_is_gone_is_answered_nowhere(error: PeerLost | None) -> None:
    owners = with_question_held_elsewhere()
    owners.lose(A, EVEN, error)
    owners.lose(B, ODD)
    assert len(owners.given) == 1, "B has spoken with EVEN never, and would wait a minute for it"
    owners.ask(LATER)
    assert owners.given[1:] == [(LATER, B, 1)]


def test_what_a_lost_guest_had_of_another_owner_is_given_again_at_once() -> None:
    owners = Owners()
    owners.open(B)
    owners.ask(EVEN)
    owners.ask(LATER)
    assert owners.given == [(EVEN, B, 1)]
    owners.lose(A, EVEN)
    assert owners.given[1:] == [(LATER, B, 1)]


def test_the_next_life_of_a_lost_guest_is_answered_by_the_other_owner() -> None:
    owners = with_question_held_elsewhere()
    owners.lose(A, EVEN)
    owners.ask(EVEN)
    owners.lose(B, ODD)
    assert owners.given[1:] == [(EVEN, B, 1)]


def test_what_is_late_with_the_only_guest_that_asks_here_is_given_to_one_that_asks_elsewhere() -> None:
    owners = Owners()
    owners.ask(ODD)
    owners.open(B)  # for ODD at once, so that A hears of nothing
    owners.ask(ODD)
    owners.ask(EVEN)
    assert owners.given == [(ODD, B, 1)]
    owners.pass_time(LATE)
    assert owners.given[1:] == [(EVEN, B, 1)]


def test_only_the_owner_that_a_guest_asks_first_says_that_it_is_lost() -> None:
    with pytest.raises(Malformed, match="host rollout-0 has another owner to ask first than host train-1"):
        Owners().hear(A, B, say.GuestLost(str(EVEN), "gone"))
