"""SRPO's rewards, worked by hand, and what they do not depend on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.v1alpha1.algorithm import ProgressSpec
from rljob_worker.algorithms.progress_rewards import (
    NOISE,
    ProgressRewards,
    cluster_centres,
    density_clusters,
    progress_rewards,
)

# Task 0 succeeds at 0, 0.1 and 10: mean 3.3667, standard deviation 4.691, so that 0 and 0.1 are 0.021 of it apart, one
# cluster with its centre at 0.05, and 10 is in none. Failures at 1 and 4 are 0.95 and 3.95 from the centre: d' 0 and 1.
# Task 1 succeeds at (0, 0) and (4, 0), 2 standard deviations apart: no cluster, and the centre is (2, 0). Its failures
# are 3 away, both of them. Task 2 has no failure.
TASKS = [0, 0, 0, 0, 0, 1, 1, 1, 1, 2]
SUCCESS = [1, 1, 1, 0, 0, 1, 1, 0, 0, 1]
EMBEDDINGS = [(0, 0), (0.1, 0), (10, 0), (1, 0), (4, 0), (0, 0), (4, 0), (2, 3), (2, -3), (7, 7)]
SIGMOID_5 = 0.9933071490757153


def rewards_of(unseen: list[int] | None = None, **options: Any) -> ProgressRewards:
    has_embedding = np.ones(len(TASKS), np.bool_)
    has_embedding[unseen or []] = False
    return progress_rewards(
        np.array(TASKS),
        np.array(SUCCESS, np.bool_),
        np.array(EMBEDDINGS, np.float64),
        has_embedding,
        ProgressSpec(**options),
    )


def test_failures_are_compared_with_the_nearest_cluster_of_successes():
    result = rewards_of()
    expected = [1, 1, 1, 0.6 * SIGMOID_5, 0.6 * (1 - SIGMOID_5), 1, 1, 0.3, 0.3, 1]
    np.testing.assert_allclose(result.rewards, expected, rtol=0, atol=1e-9)
    np.testing.assert_allclose(result.distances[[3, 4, 7, 8]], [0.95, 3.95, 3, 3], rtol=0, atol=1e-9)
    assert np.isnan(result.distances[[0, 1, 2, 5, 6, 9]]).all()
    assert (result.num_tasks, result.num_plain_tasks, result.num_unclustered_tasks) == (3, 1, 1)


def test_the_form_of_the_paper_counts_in_standard_deviations():
    # distances 0.95 and 3.95: mean 2.45, standard deviation 1.5, so that z is -1 and 1; sigmoid(1) = 0.7310585786
    result = rewards_of(form="Paper", scale=0.8)
    expected = [0.8 * 0.7310585786300049, 0.8 * 0.2689414213699951, 0.4, 0.4]
    np.testing.assert_allclose(result.rewards[[3, 4, 7, 8]], expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("missing", "success", "failure"), [("PlainSuccess", 1.0, 0.0), ("Zero", 0.0, 0.0)])
def test_without_an_embedding_an_episode_is_compared_with_nothing(missing: str, success: float, failure: float):
    # without (0.1, 0) the two other successes of task 0 are apart, and their mean (5, 0) is the centre: of the failures
    # only the one at 1 is left, which differs from no other
    result = rewards_of([1, 4], missing=missing)
    assert (result.rewards[1], result.rewards[4], result.num_missing) == (success, failure, 2)
    assert result.distances[3] == 4.0 and result.rewards[3] == pytest.approx(0.3, abs=1e-12)


def test_a_task_whose_successes_have_no_embedding_is_rewarded_plainly():
    result = rewards_of([5, 6])
    assert result.rewards[5:9].tolist() == [1, 1, 0, 0]
    assert result.num_plain_tasks == 2


def test_a_point_within_reach_of_two_clusters_is_of_the_first():
    # all but the outermost two of the chain have three neighbours within 0.41, itself among them
    points = np.array([[0.0], [0.4], [0.8], [1.2], [1.6], [2.0], [9.0]])
    assert density_clusters(points, 0.41, 3).tolist() == [0, 0, 0, 0, 0, 0, NOISE]
    # 2 is the neighbour of the core points 1 and 3, which are not neighbours: it is of the cluster that began first
    ends = np.array([[0.0], [0.5], [1.0], [2.0], [3.0], [3.5], [4.0]])
    assert density_clusters(ends, 1.0, 4).tolist() == [0, 0, 0, 0, 1, 1, 1]


def test_a_dimension_that_does_not_vary_is_no_error():
    centres, is_clustered = cluster_centres(np.array([[1.0, 5.0], [1.0, 5.0], [1.0, 5.0]]), 0.5, 2)
    assert is_clustered and centres.tolist() == [[1.0, 5.0]]


@given(st.data())
def test_the_order_of_episodes_changes_no_reward(data: st.DataObject):
    size = data.draw(st.integers(1, 12))
    numbers = st.lists(st.integers(0, 3), min_size=size, max_size=size)
    tasks, success, where = (np.array(data.draw(numbers)) for _ in range(3))
    embeddings = np.stack([where * 1.7, where**2], axis=1).astype(np.float64)
    order = np.array(data.draw(st.permutations(range(size))))
    options, known = ProgressSpec(), np.ones(size, np.bool_)
    result = progress_rewards(tasks, success < 2, embeddings, known, options)
    other = progress_rewards(tasks[order], success[order] < 2, embeddings[order], known, options)
    np.testing.assert_allclose(other.rewards, result.rewards[order], rtol=0, atol=1e-12)
