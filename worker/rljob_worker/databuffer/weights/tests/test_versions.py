"""Which versions a host keeps of one source."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.databuffer.protocol.errors import OutOfOrder
from rljob_worker.databuffer.weights.versions import Versions, version_list


def versions(most: int, *, is_store: bool = True) -> Versions:
    return Versions("weights/actor", most, is_store)


def test_a_store_keeps_versions_until_they_are_released_and_no_more_than_the_plan_has():
    some = versions(2)
    some.begin(4)
    some.closed(4, 7)
    some.begin(6)
    assert (some.held, some.whole, some.num_chunks(4), some.num_chunks(6)) == ((4, 6), (4,), 7, None)
    words = "version 7 of weights/actor cannot begin: versions 4 and 6 are not released, and the plan has room for 2"
    with pytest.raises(OutOfOrder, match=words):
        some.begin(7)
    some.release(4)
    some.release(5)  # there is none
    some.begin(7)
    assert some.held == (6, 7) and not some.keeps(4) and some.keeps(6)
    some.closed(4, 7)  # it is not kept any more
    assert some.whole == ()


def test_only_where_nobody_can_be_late_does_a_store_let_go_of_what_is_not_released():
    assert versions(1).may_drop and not versions(2).may_drop
    assert versions(1, is_store=False).may_drop and versions(2, is_store=False).may_drop


def test_other_hosts_keep_the_newest_and_nothing_where_the_plan_has_one():
    some = versions(2, is_store=False)
    for version in (1, 2, 3):
        some.begin(version)
    assert some.held == (2, 3)
    one = versions(1, is_store=False)
    one.begin(1)
    assert one.held == ()


def test_versions_in_words():
    assert [version_list(item) for item in ((), (3,), (3, 5), (3, 5, 6))] == [
        "no version is",
        "version 3 is",
        "versions 3 and 5 are",
        "versions 3, 5 and 6 are",
    ]


@given(
    most=st.integers(1, 6),
    is_store=st.booleans(),
    events=st.lists(st.tuples(st.sampled_from(["begin", "close", "release"]), st.integers(0, 3)), max_size=40),
)
def test_never_more_than_the_plan_has_and_none_that_was_released(most, is_store, events):
    some, newest, released = versions(most, is_store=is_store), -1, set[int]()
    for what, number in events:
        if what == "begin":
            try:
                some.begin(newest + 1 + number)
                newest += 1 + number
            except OutOfOrder:
                assert is_store and len(some.held) == most
        elif what == "close":
            some.closed(newest, number)
        else:
            some.release(newest - number)
            released.add(newest - number)
        assert len(some.held) <= most and list(some.held) == sorted(some.held)
        assert max(some.held, default=-1) <= newest and not released & set(some.held)
