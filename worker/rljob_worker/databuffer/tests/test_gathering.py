"""What one host gathers: in which order, until when, and what it refuses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.databuffer.protocol.errors import Malformed, OutOfOrder
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.tree import Gathering

A, B = Host("train", 1), Host("train", 2)


def test_all_is_given_with_whatever_comes_last_members_first():
    gathering = Gathering(frozenset({4, 5}), frozenset({A, B}))
    assert gathering.say(5, b"five") is None
    assert gathering.hear(B, b"b") is None
    assert gathering.missing_members == [4] and gathering.missing_hosts == [A]
    assert gathering.say(4, b"four") is None
    assert gathering.missing_members == []
    assert gathering.hear(A, b"a") == [b"four", b"five", b"a", b"b"]
    assert gathering.missing_hosts == []


def test_a_member_may_be_the_last_and_the_only_one():
    assert Gathering(frozenset({7}), frozenset()).say(7, b"") == [b""]
    gathering = Gathering(frozenset({7}), frozenset({A}))
    assert gathering.hear(A, b"a") is None
    assert gathering.say(7, b"seven") == [b"seven", b"a"]


def test_hosts_without_members_pass_on_what_those_below_say():
    assert Gathering(frozenset(), frozenset({A})).hear(A, b"a") == [b"a"]


def test_who_is_missing_is_named_in_order():
    gathering = Gathering(frozenset({3, 20, 1}), frozenset({B, Host("train", 10), A}))
    assert gathering.missing_members == [1, 3, 20]
    assert gathering.missing_hosts == [A, B, Host("train", 10)]


def test_nobody_speaks_twice_and_no_stranger_at_all():
    gathering = Gathering(frozenset({1, 2}), frozenset({A, B}))
    gathering.say(1, b"first")
    gathering.hear(A, b"first")
    with pytest.raises(OutOfOrder, match="member 1 has said it before"):
        gathering.say(1, b"second")
    with pytest.raises(Malformed, match="host train-1 has said it twice"):
        gathering.hear(A, b"second")
    with pytest.raises(AssertionError, match=r"3 is none of \[1, 2\]"):
        gathering.say(3, b"")
    with pytest.raises(Malformed, match="host train-9 has nothing to say here"):
        gathering.hear(Host("train", 9), b"")
    gathering.say(2, b"second")
    assert gathering.hear(B, b"b") == [b"first", b"second", b"first", b"b"]


def test_it_has_begun_once_a_member_has_its_say():
    gathering = Gathering(frozenset({1}), frozenset({A}))
    assert not gathering.has_begun and not gathering.is_over
    gathering.hear(A, b"")
    assert not gathering.has_begun
    gathering.say(1, b"")
    assert gathering.has_begun and not gathering.is_over


@given(st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)), st.randoms(use_true_random=False))
def test_the_order_does_not_depend_on_who_was_first(members, hosts, rng):
    gathering = Gathering(frozenset(members), frozenset(Host("train", index) for index in hosts))
    speakers = [(gathering.say, member, b"m%d" % member) for member in members]
    speakers += [(gathering.hear, Host("train", index), b"h%d" % index) for index in hosts]
    rng.shuffle(speakers)
    answers = [speak(who, payload) for speak, who, payload in speakers]
    assert answers[:-1] == [None] * len(answers[:-1])
    if answers:
        assert answers[-1] == [b"m%d" % member for member in sorted(members)] + [b"h%d" % i for i in sorted(hosts)]
