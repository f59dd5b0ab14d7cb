"""What a data buffer knows of an edge, step by step, and when it forgets it."""

import pytest

from rljob_worker.databuffer.protocol.errors import OutOfOrder
from rljob_worker.databuffer.pull.edges import MAX_OPEN_STEPS, ConsumerShare, Edges, EdgeStep, ProducerPart, SharePhase
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.routes.stage_route import stage_routes
from rljob_worker.databuffer.rows.tests.batches import batch_of, stored
from rljob_worker.databuffer.store.segments import Item, Segments
from rljob_worker.databuffer.tests.gang import two_stages

EDGE = "a->b"
CONSUMER, PRODUCER = Host("train", 0), Host("rollout", 0)


def edges(here: Host, kept_steps: int = 2) -> Edges:
    """Two parts a host of producers, two shares a host of consumers."""
    return Edges(stage_routes(two_stages((2, 2), (2, 2))), here, kept_steps)


def read(state: EdgeStep, *shares: int) -> None:
    for number in shares:
        state.share(number).phase = SharePhase.OVER


def part() -> ProducerPart:
    segment = Segments(4096).try_reserve(Item(EDGE, 1, "part", 0), 1)
    assert segment is not None
    return ProducerPart(segment, stored(batch_of([0])))


def test_steps_are_forgotten_once_they_are_over_and_far_enough_behind():
    known = edges(CONSUMER)
    for step in (1, 2, 3):
        read(known.at(EDGE, step), 0, 1)
    assert [state.step for state in known.steps(EDGE)] == [1, 2, 3]
    known.at(EDGE, 4)
    assert [state.step for state in known.steps(EDGE)] == [2, 3, 4]
    with pytest.raises(OutOfOrder, match="step 1 of edge a->b is over: step 4 is here"):
        known.at(EDGE, 1)
    assert known.find(EDGE, 1) is None and known.find(EDGE, 2) is known.at(EDGE, 2)


def test_a_step_stays_while_one_share_has_not_even_been_asked_for():
    known = edges(CONSUMER)
    first = known.at(EDGE, 1)
    read(first, 0)
    known.at(EDGE, 100)
    assert known.at(EDGE, 1) is first
    read(first, 1)
    known.at(EDGE, 101)
    assert known.find(EDGE, 1) is None


def test_a_step_stays_until_all_parts_have_been_put_and_read():
    known = edges(PRODUCER)
    first = known.at(EDGE, 1)
    assert first.unsealed == [0, 1] and not first.is_over
    first.parts[0] = part()
    first.sealed = {0, 1}
    assert first.unsealed == [] and not first.is_over
    first.parts.clear()
    assert first.is_over
    first.sealed = {1}
    assert first.unsealed == [0] and not first.is_over


def test_steps_need_not_come_in_order():
    known = edges(CONSUMER)
    later = known.at(EDGE, 7)
    assert known.at(EDGE, 3) is known.at(EDGE, 3) and known.at(EDGE, 7) is later
    assert [state.step for state in known.steps(EDGE)] == [3, 7]


def test_the_newest_that_is_forgotten_counts():
    known = edges(CONSUMER, kept_steps=0)
    for step in (5, 4, 3):
        read(known.at(EDGE, step), 0, 1)
    known.at(EDGE, 6)
    for step in (3, 4, 5):
        with pytest.raises(OutOfOrder, match="is over: step 6 is here"):
            known.at(EDGE, step)
    known.at(EDGE, 0 + 6)


def test_step_zero_is_a_step():
    assert edges(CONSUMER).at(EDGE, 0).step == 0


def test_no_more_than_so_many_steps_are_open():
    known = edges(CONSUMER)
    for step in range(1, MAX_OPEN_STEPS + 1):
        known.at(EDGE, step)
    with pytest.raises(OutOfOrder, match="step 900 of edge a->b, while 64 others from 1 on are open"):
        known.at(EDGE, 900)
    read(known.at(EDGE, 1), 0, 1)
    assert known.at(EDGE, 900).step == 900


def test_seconds_of_a_share():
    asked_first = ConsumerShare(0, wanted_at=10.0, offered_at=13.0, ready_at=14.0)
    assert (asked_first.producer_seconds, asked_first.transfer_seconds) == (3.0, 1.0)
    there_first = ConsumerShare(0, wanted_at=10.0, offered_at=7.0, ready_at=14.0)
    assert (there_first.producer_seconds, there_first.transfer_seconds) == (0.0, 4.0)
    assert ConsumerShare(0, wanted_at=10.0, offered_at=13.0).transfer_seconds == 0.0


def test_what_is_known_of_a_step():
    state = edges(CONSUMER).at(EDGE, 1)
    assert state.name == "edge a->b, step 1" and state.is_assigned
    # 8 prompts of 4 parts to 4 shares: part 0 feeds share 0, part 3 share 3
    assert state.expected(0) == {Host("rollout", 0): (0,)} and state.expected(3) == {Host("rollout", 1): (3,)}
    assert state.share(0).missing(state.expected(0) or {}) == [Host("rollout", 0)]
    assert state.share(0) is state.share(0) and state.feeding(0) == []


def test_before_the_layout_is_complete_nobody_is_expected():
    state = Edges(stage_routes(two_stages((2, 2), (2, 2), balance="Tokens")), CONSUMER, 2).at(EDGE, 1)
    assert not state.is_assigned and state.expected(0) is None


def test_parts_that_feed_a_share_come_in_order():
    state = edges(PRODUCER).at(EDGE, 1)
    first, second, unknown = part(), part(), part()
    first.rows_of, second.rows_of = {0: [], 1: []}, {1: []}  # type: ignore[dict-item]
    state.parts = {1: second, 0: first, 2: unknown}
    assert state.feeding(1) == [first, second] and state.feeding(0) == [first] and state.feeding(2) == []
