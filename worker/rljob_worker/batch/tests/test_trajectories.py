"""Trajectories of one row or several."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.batch.trajectories import Trajectories
from rljob_worker.errors import BadData


def of(*row_ids, bound=3):
    return Trajectories(np.array(row_ids, np.int64), bound)


def test_rows_of_trajectories_by_hand():
    # trajectories 4, 5 and 6 with 2, 1 and 1 of up to 3 rows
    result = of(12, 13, 15, 18)
    assert len(result) == 3
    assert (result.first.tolist(), result.last.tolist()) == ([0, 2, 3], [1, 2, 3])
    assert (result.of_row.tolist(), result.ids.tolist()) == ([0, 0, 1, 2], [4, 4, 5, 6])
    assert result.on_rows(np.array([0.5, 1.0, 2.0])).tolist() == [0.5, 0.5, 1.0, 2.0]
    assert result.any_row(np.array([False, True, False, False])).tolist() == [True, False, False]


@pytest.mark.parametrize("bound", [1, 3])
def test_no_rows_are_no_trajectories(bound):
    result = of(bound=bound)
    assert len(result) == 0
    assert (result.first.tolist(), result.last.tolist(), result.of_row.tolist()) == ([], [], [])
    assert result.any_row(np.zeros(0, bool)).tolist() == []
    result.require_of_groups(np.zeros(0, np.int64), 2)


@given(st.sets(st.integers(0, 99)))
def test_with_one_row_each_a_row_is_a_trajectory(rows):
    result, places = of(*sorted(rows), bound=1), list(range(len(rows)))
    assert result.first.tolist() == result.last.tolist() == result.of_row.tolist() == places
    assert result.ids.tolist() == sorted(rows)


@given(st.lists(st.integers(0, 3), max_size=20))
def test_any_number_of_rows(sizes):
    """Sizes of trajectories 0, 1, 2 ...; those of size 0 are on another rank."""
    rows = [3 * trajectory + index for trajectory, size in enumerate(sizes) for index in range(size)]
    result, here = of(*rows), [size for size in sizes if size]
    assert np.diff(result.first, append=len(rows)).tolist() == here
    assert (result.last - result.first + 1).tolist() == here
    assert result.of_row.tolist() == np.repeat(np.arange(len(here)), here).tolist()


@pytest.mark.parametrize(
    ("here", "message"),
    [
        ([3, 5], "row 6 is row 3 of trajectory 1, whose row 2 is not here"),  # row 4 is on another rank
        ([0, 4], "row 5 is row 2 of trajectory 1, whose row 1 is not here"),
        ([1], "row 2 is row 2 of trajectory 0, whose row 1 is not here"),
    ],
)
def test_rows_of_one_trajectory_on_two_ranks(here, message):
    with pytest.raises(BadData, match=message):
        of(*here)


def test_a_trajectory_without_rows():
    # groups of two: trajectories 0 and 1, 2 and 3; 3 has no row
    result = of(0, 1, 3, 6, 7)
    result.require_of_groups(np.array([0, 0, 0, 1, 1]), 1)
    with pytest.raises(BadData, match="trajectory 3 has no row: group 1 has 1 of groupSize 2 trajectories here"):
        result.require_of_groups(np.array([0, 0, 0, 1, 1]), 2)


def test_rows_of_one_trajectory_have_one_reward():
    of(0, 1, 3).require_alike(np.array([1.0, 1.0, 0.5]), "reward")
    of(0, 1, bound=1).require_alike(np.array([1.0, np.nan]), "reward")
    with pytest.raises(BadData, match=r"row 2 has the reward 0.0 and row 1 of the same trajectory 1.0"):
        of(0, 1, 3).require_alike(np.array([1.0, 0.0, 0.5]), "reward")


def test_rows_of_agents_by_hand():
    # two agents with up to 2 rows each: trajectory 0 has two of agent 0 and one of agent 1, trajectory 1 one of agent 1
    result = Trajectories(np.array([0, 1, 2, 6]), 4, num_agents=2)
    assert (result.of_row.tolist(), result.agent_of_row.tolist()) == ([0, 0, 0, 1], [0, 0, 1, 1])
    assert (result.first.tolist(), result.last.tolist()) == ([0, 3], [2, 3])
    parts = result.of_agents
    assert (parts.of_row.tolist(), parts.ids.tolist()) == ([0, 0, 1, 2], [0, 0, 1, 3])
    with pytest.raises(BadData, match="row 4 is row 4 of trajectory 0, whose row 3 is not here"):
        Trajectories(np.array([0, 3]), 4, num_agents=2)
