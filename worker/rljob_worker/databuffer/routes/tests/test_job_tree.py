"""The one tree of all hosts: who is whose parent, and who is below whom."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.databuffer.routes.hosts import Host, guests_of, hosts_of
from rljob_worker.databuffer.routes.job_tree import JobTree
from rljob_worker.databuffer.tests.gang import group, plan_of
from rljob_worker.tests.documents import plan_of as small_plan

SEVEN = JobTree((("train", 3), ("rollout", 4)), 2)
"""Level by level: train-0 | train-1 train-2 | rollout-0 rollout-1 rollout-2 rollout-3."""


def train(*indices):
    return tuple(Host("train", index) for index in indices)


def rollout(*indices):
    return tuple(Host("rollout", index) for index in indices)


@st.composite
def shapes(draw):
    """1 to 70 hosts in 1 to 4 groups, fan-out 1 to 33."""
    sizes = draw(st.lists(st.integers(1, 17), min_size=1, max_size=4))
    return JobTree(tuple((f"group{number}", size) for number, size in enumerate(sizes)), draw(st.integers(1, 33)))


def below(shape, host):
    """A host and all below it."""
    return [host, *(item for child in shape.children(host) for item in below(shape, child))]


def test_the_leads_group_comes_first_and_the_others_as_they_are_planned():
    # the lead's group is the last of these
    plan = plan_of([group("reward", 1, 2, []), group("rollout", 4, 8, []), group("train", 3, 8, [])], [], {})
    shape = JobTree.of(plan)
    assert shape == JobTree((("train", 3), ("reward", 1), ("rollout", 4)), 32)
    assert JobTree.of(plan, 5).fan_out == 5
    assert shape.root == Host("train", 0) and shape.size == 8


def test_seven_hosts_two_below_each():
    assert [SEVEN.parent(SEVEN.host(position)) for position in range(7)] == [
        None, *train(0, 0), *train(1, 1), *train(2, 2),
    ]  # fmt: skip
    assert SEVEN.children(Host("train", 0)) == train(1, 2)
    assert SEVEN.children(Host("train", 1)) == rollout(0, 1)
    assert SEVEN.children(Host("train", 2)) == rollout(2, 3)
    assert SEVEN.children(Host("rollout", 0)) == ()
    assert SEVEN.neighbours(Host("train", 0)) == train(1, 2)
    assert SEVEN.neighbours(Host("train", 1)) == train(0) + rollout(0, 1)
    assert SEVEN.neighbours(Host("rollout", 3)) == train(2)


def test_positions_count_over_the_groups():
    assert list(SEVEN.span("train")) == [0, 1, 2] and list(SEVEN.span("rollout")) == [3, 4, 5, 6]
    assert [SEVEN.position(host) for host in (*train(0, 2), *rollout(0, 3))] == [0, 2, 3, 6]
    assert SEVEN.positions(["rollout", "train"]) == (0, 1, 2, 3, 4, 5, 6)
    assert SEVEN.positions(["rollout"]) == (3, 4, 5, 6) and SEVEN.positions([]) == ()


def test_who_is_reached_below_whom():
    assert [SEVEN.reaches(SEVEN.host(position), (4,)) for position in range(7)] == [
        True, True, False, False, True, False, False,
    ]  # fmt: skip
    assert SEVEN.reaches(Host("train", 2), (3, 4, 6)) and not SEVEN.reaches(Host("train", 2), (0, 1, 3, 4))
    assert not SEVEN.reaches(SEVEN.root, ())


@pytest.mark.parametrize("host", [Host("train", 3), Host("train", -1), Host("rollout", 4), Host("judge", 0)])
def test_a_host_of_no_group_has_no_position(host):
    with pytest.raises(KeyError):
        SEVEN.position(host)


def test_there_is_no_host_beyond_the_last():
    with pytest.raises(IndexError):
        SEVEN.host(7)
    with pytest.raises(KeyError, match="judge"):
        SEVEN.span("judge")


def test_1024_hosts_are_three_levels_and_nobody_talks_to_more_than_33():
    shape = JobTree((("train", 1024),))
    assert shape.fan_out == 32
    last = Host("train", 1023)
    assert shape.parent(last) == Host("train", 31) and shape.parent(Host("train", 31)) == shape.root
    assert max(len(shape.neighbours(shape.host(position))) for position in range(1024)) == 33


@given(shapes())
def test_every_host_is_below_the_root_exactly_once(shape):
    everybody = [shape.host(position) for position in range(shape.size)]
    assert [shape.position(host) for host in everybody] == list(range(shape.size))
    assert sorted(below(shape, shape.root)) == sorted(everybody)
    for host in everybody:
        assert len(shape.children(host)) <= shape.fan_out
        assert all(shape.parent(child) == host for child in shape.children(host))


@given(st.data(), shapes())
def test_a_host_reaches_those_below_it_and_itself(data, shape):
    ends = tuple(sorted(data.draw(st.sets(st.integers(0, shape.size - 1)))))
    for position in range(shape.size):
        host = shape.host(position)
        expected = any(shape.position(item) in ends for item in below(shape, host))
        assert shape.reaches(host, ends) == expected


def test_guests_are_in_no_tree():
    groups = [{"name": "train", "replicas": 2}, {"name": "rollout", "elastic": {"min": 1, "max": 3}}]
    plan = small_plan(workerGroups=groups, rollout={"maxStaleness": 1})
    assert JobTree.of(plan).groups == (("train", 2),)
    assert hosts_of(plan) == train(0, 1) and guests_of(plan) == rollout(0, 1, 2)
