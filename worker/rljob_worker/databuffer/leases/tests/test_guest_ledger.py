"""Leases of guests that come and go: every lease is delivered exactly once, whatever they do and in whatever order."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_worker.databuffer.leases.guest_ledger import Generator, GuestLedger
from rljob_worker.databuffer.protocol.errors import Malformed
from rljob_worker.databuffer.routes.guest_route import VALIDATION_PIECES, LeaseId
from rljob_worker.databuffer.routes.hosts import Host

LATE = 10.0
A, B, C = (Generator(Host("rollout", index), 0) for index in range(3))


def lease(step: int, index: int = 0) -> LeaseId:
    return LeaseId(step, index, 0, "rollout")


def ledger_of(num_leases: int, last: int = 1, first: int = 1) -> GuestLedger:
    result = GuestLedger(lambda step: [lease(step, index) for index in range(num_leases)], LATE)
    result.open(first, last)
    return result


def deliver(ledger: GuestLedger, one: LeaseId, generator: Generator) -> None:
    assert ledger.offer(one, generator) and ledger.first_offer(one) == generator
    assert ledger.keep(one, generator) == []


def test_leases_are_given_in_their_order_and_each_step_once_it_is_open() -> None:
    ledger = ledger_of(2)
    assert [ledger.take(A, 0.0) for _ in range(3)] == [lease(1, 0), lease(1, 1), None]
    ledger.open(1, 2)
    assert ledger.take(B, 0.0) == lease(2, 0)
    ledger.open(1, 2)  # another worker of the host says the same
    assert [ledger.take(B, 0.0) for _ in range(2)] == [lease(2, 1), None]


def test_an_attempt_that_goes_on_begins_with_its_first_step() -> None:
    ledger = ledger_of(1, first=4, last=5)
    assert [ledger.take(A, 0.0) for _ in range(3)] == [lease(4), lease(5), None]
    assert ledger.is_over(lease(3)) and not ledger.is_over(lease(4))


def test_leases_of_a_lost_guest_are_given_again_before_fresh_ones() -> None:
    ledger = ledger_of(4)
    assert [ledger.take(one, 0.0) for one in (A, A, B)] == [lease(1, 0), lease(1, 1), lease(1, 2)]
    assert ledger.given_to(A.guest) and ledger.lose(A.guest) == [lease(1, 0), lease(1, 1)]
    assert not ledger.given_to(A.guest)
    assert [ledger.take(B, 1.0) for _ in range(4)] == [lease(1, 0), lease(1, 1), lease(1, 3), None]
    assert ledger.counts.given_again == 2


def test_rows_that_a_lost_guest_has_made_but_not_handed_over_are_made_again() -> None:
    ledger = ledger_of(1)
    ledger.take(A, 0.0)
    assert ledger.offer(lease(1), A)
    ledger.lose(A.guest)
    assert ledger.first_offer(lease(1)) is None
    assert ledger.take(A, 1.0) == lease(1)  # its successor of that name
    deliver(ledger, lease(1), A)
    assert ledger.lose(A.guest) == [] and ledger.take(B, 2.0) is None


def test_a_late_lease_is_given_to_another_guest_and_the_first_delivery_counts() -> None:
    ledger = ledger_of(1)
    ledger.take(A, 0.0)
    assert ledger.take(B, LATE - 1) is None and ledger.due(LATE - 1) == 1.0
    assert ledger.take(A, LATE) is None, "it has it already"
    assert list(ledger.late(LATE)) == [lease(1)]
    assert ledger.take(B, LATE) == lease(1)
    assert ledger.take(C, LATE + 1) is None, "it is late with nobody but the first"
    assert ledger.late(LATE + 1) == {} and list(ledger.late(2 * LATE)) == [lease(1)]
    deliver(ledger, lease(1), A)
    assert not ledger.offer(lease(1), B)
    assert (ledger.counts.given_again, ledger.counts.dropped_late) == (1, 1)
    assert not ledger.given_to(A.guest) and not ledger.given_to(B.guest)


def test_the_second_of_two_deliveries_is_fetched_when_the_first_breaks_off() -> None:
    ledger = ledger_of(1)
    ledger.take(A, 0.0)
    ledger.take(B, LATE)
    assert ledger.offer(lease(1), A) and ledger.offer(lease(1), B)
    assert ledger.first_offer(lease(1)) == A
    ledger.lose(A.guest)
    assert ledger.first_offer(lease(1)) == B and ledger.keep(lease(1), B) == []


def test_the_second_of_two_deliveries_is_dropped_when_the_first_is_here() -> None:
    ledger = ledger_of(1)
    ledger.take(A, 0.0)
    ledger.take(B, LATE)
    assert ledger.offer(lease(1), A) and ledger.offer(lease(1), B)
    assert ledger.keep(lease(1), A) == [B] and ledger.counts.dropped_late == 1


def test_what_comes_after_its_step_is_over_is_dropped() -> None:
    ledger = ledger_of(1, last=2)
    ledger.take(A, 0.0)
    ledger.forget("rollout", 1)
    assert not ledger.offer(lease(1), A) and ledger.counts.dropped_late == 1
    ledger.give_back(lease(1), A)
    assert ledger.take(B, 0.0) == lease(2)


def test_pieces_of_a_validation_precede_the_step_that_is_opened_after_them_and_outlive_earlier_ones() -> None:
    ledger, piece = ledger_of(1), LeaseId(1, 0, 0, VALIDATION_PIECES)
    ledger.add([piece])
    ledger.open(1, 2)
    assert [ledger.take(A, 0.0) for _ in range(3)] == [lease(1), piece, lease(2)]
    ledger.forget("rollout", 2)
    assert ledger.is_over(lease(2)) and not ledger.is_over(piece)
    deliver(ledger, piece, A)
    ledger.forget(VALIDATION_PIECES, 1)
    assert ledger.is_over(piece)


@pytest.mark.parametrize(
    ("generator", "words"),
    [(A, "host rollout-0 delivered lease 0 of rank 0, rollout, step 1 twice"), (B, "host rollout-1.*was not given")],
)
def test_a_delivery_that_cannot_be_is_refused_by_name(generator: Generator, words: str) -> None:
    ledger = ledger_of(1)
    ledger.take(A, 0.0)
    ledger.offer(lease(1), A)
    with pytest.raises(Malformed, match=words):
        ledger.offer(lease(1), generator)


def test_a_guest_that_stops_returns_what_it_has() -> None:
    ledger = ledger_of(2)
    ledger.take(A, 0.0)
    ledger.give_back(lease(1, 0), A)
    ledger.give_back(lease(1, 0), A)
    ledger.give_back(lease(1, 1), A)  # which it never had
    assert [ledger.take(B, 0.0) for _ in range(3)] == [lease(1, 0), lease(1, 1), None]
    assert ledger.counts.given_again == 1


@settings(max_examples=100)
@given(st.integers(1, 5), st.integers(1, 4), st.randoms(use_true_random=False))
def test_every_lease_is_delivered_exactly_once_whatever_guests_do(num_leases, num_guests, rng) -> None:
    """Guests take, make, hand over, return, are lost, and time passes, in any order; at the end one that works ends
    what is left."""
    ledger, generators = ledger_of(num_leases, last=2), [Generator(Host("g", i % 3), i // 3) for i in range(num_guests)]
    has: dict[Generator, set[LeaseId]] = {one: set() for one in generators}
    offered: list[tuple[LeaseId, Generator]] = []
    kept: list[LeaseId] = []
    now = 0.0

    def take(one: Generator) -> None:
        taken = ledger.take(one, now)
        if taken is not None:
            assert taken not in kept and all(taken not in has[other] for other in has if other.guest == one.guest)
            has[one].add(taken)

    def make(one: Generator) -> None:
        if has[one]:
            made = rng.choice(sorted(has[one]))
            has[one].discard(made)
            if ledger.offer(made, one):
                offered.append((made, one))
            else:
                assert made in kept

    def fetch() -> None:
        ready = [(made, one) for made, one in offered if ledger.first_offer(made) == one]
        if ready:
            made, one = rng.choice(ready)
            others = ledger.keep(made, one)
            assert {(made, other) for other in others} == {(m, o) for m, o in offered if m == made and o != one}
            offered[:] = [(m, o) for m, o in offered if m != made]
            kept.append(made)

    def lose(guest: Host) -> None:
        mine = {made for one in generators if one.guest == guest for made in has[one]}
        mine |= {made for made, one in offered if one.guest == guest}
        assert set(ledger.lose(guest)) == mine
        offered[:] = [(made, one) for made, one in offered if one.guest != guest]
        for one in generators:
            if one.guest == guest:
                has[one].clear()

    for _ in range(60):
        one, what = rng.choice(generators), rng.randrange(8)
        if what <= 2:
            take(one)
        elif what == 3:
            make(one)
        elif what == 4:
            fetch()
        elif what == 5:
            lose(one.guest)
        elif what == 6 and has[one]:
            returned = rng.choice(sorted(has[one]))
            has[one].discard(returned)
            ledger.give_back(returned, one)
        elif what == 7:
            now += rng.choice([1.0, LATE])
    while len(kept) < 2 * num_leases:
        now += LATE
        one = Generator(Host("g", 9), 0)
        has.setdefault(one, set())
        take(one)
        make(one)
        fetch()
    assert sorted(kept) == sorted(lease(step, index) for step in (1, 2) for index in range(num_leases))
