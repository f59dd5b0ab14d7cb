"""Who may draw what: every lease of a round once, no matter who asks whom and when."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.databuffer.leases.ledger import Ledger, merge_outcomes
from rljob_worker.databuffer.protocol.errors import Malformed


def ledgers(num_owners, staleness=0):
    return [Ledger(owner, num_owners, staleness) for owner in range(num_owners)]


def ask(owners, generator, step, number, num_leases):
    """At home first, then once round the owners."""
    for hop in range(len(owners)):
        lease = owners[(generator + hop) % len(owners)].grant(step, number, num_leases)
        if lease is not None:
            return lease
    return None


def test_an_owner_hands_out_its_own_leases_in_order():
    # of 5 leases and 2 owners, owner 1 has 1 and 3
    _, ledger = ledgers(2)
    assert [ledger.grant(1, 0, 5) for _ in range(3)] == [1, 3, None]
    assert ledger.grant(1, 1, 2) == 1  # the next round
    assert ledger.grant(1, 0, 5) is None  # which does not begin the first anew


@pytest.mark.parametrize("num_owners, num_leases", [(1, 3), (1, 0), (4, 3), (3, 0), (2, 2)])
def test_whoever_asks_gets_all_there_are_and_then_none(num_owners, num_leases):
    owners = ledgers(num_owners)
    result = [ask(owners, 2, 1, 0, num_leases) for _ in range(num_leases + 2)]
    assert sorted(result[:num_leases]) == list(range(num_leases)) and result[num_leases:] == [None, None]


@given(
    st.integers(1, 6),
    st.integers(1, 6),
    st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=3), min_size=1, max_size=5),
    st.randoms(use_true_random=False),
)
def test_every_lease_is_taken_once_by_any_number_of_generators_in_any_order(num_owners, num_generators, steps, rng):
    """steps: of each, the number of leases of every round."""
    owners = ledgers(num_owners)
    for step, rounds in enumerate(steps, start=7):
        for number, num_leases in enumerate(rounds):
            taken, asking = [], list(range(num_generators))
            while asking:
                generator = rng.choice(asking)
                lease = ask(owners, generator, step, number, num_leases)
                if lease is None:
                    asking.remove(generator)
                else:
                    taken.append(lease)
            assert sorted(taken) == list(range(num_leases))


@pytest.mark.parametrize("staleness, free", [(0, [4, 5]), (2, [4, 5, 6, 7])])
def test_no_step_begins_before_the_batch_that_is_staleness_and_two_behind_it_is_acknowledged(staleness, free):
    ledger = Ledger(0, 1, staleness)
    # the attempt begins with step 4: steps before it need no acknowledgement
    assert [step for step in range(4, 12) if ledger.is_open(step)] == free
    ledger.acknowledge(4)
    assert [step for step in range(4, 12) if ledger.is_open(step)] == [*free, free[-1] + 1]
    ledger.acknowledge(6)
    ledger.acknowledge(5)
    assert [step for step in range(4, 12) if ledger.is_open(step)][-1] == free[-1] + 3


def test_a_round_has_one_number_of_leases_and_does_not_come_back():
    ledger = Ledger(0, 1, 0)
    ledger.grant(3, 0, 5)
    with pytest.raises(Malformed, match="round 0 of step 3 has 5 leases, and not 6"):
        ledger.grant(3, 0, 6)
    assert ledger.grant(5, 0, 1) == 0
    assert ledger.grant(3, 0, 5) == 1  # two steps behind
    ledger.grant(6, 0, 1)
    with pytest.raises(Malformed, match="step 3 is over"):
        ledger.grant(3, 0, 5)


def test_outcomes_are_those_of_whoever_drew_a_number():
    assert merge_outcomes([bytes([0, 2, 0]), bytes([1, 0, 0]), bytes([0, 0, 3])]) == bytes([1, 2, 3])
    assert merge_outcomes([bytes([0, 2, 0]), bytes([1, 0, 0])]) == bytes([1, 2, 0])
    assert merge_outcomes([b""]) == b""
    with pytest.raises(Malformed, match=r"entries \[1\] of a round were drawn twice"):
        merge_outcomes([bytes([0, 2]), bytes([1, 2])])
    with pytest.raises(Malformed, match=r"have \[1, 2\] bytes"):
        merge_outcomes([b"1", b"12"])


def test_a_validation_that_is_asked_for_under_a_coming_step_moves_no_step_on():
    """Staleness 1: step 4 waits for the batch of step 1, though a validation before step 2 was leased first."""
    (ledger,) = ledgers(1, staleness=1)
    assert ledger.is_open(2) and ledger.grant(2, -1, 1) == 0
    assert ledger.is_open(1) and ledger.grant(1, 0, 1) == 0 and ledger.is_open(3)
    assert not ledger.is_open(4)
    ledger.acknowledge(1)
    assert ledger.is_open(4)
