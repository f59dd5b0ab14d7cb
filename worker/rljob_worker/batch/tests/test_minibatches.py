"""Groups dealt out over mini-batches."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.batch.minibatches import mini_batch_of


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 9), st.integers(0, 5))
def test_groups_stay_whole_and_mini_batches_are_equal(num_mini_batches, per_mini_batch, step, seed):
    batch_size = num_mini_batches * per_mini_batch
    groups = np.repeat(np.arange((step - 1) * batch_size, step * batch_size), 3)
    where = mini_batch_of(groups, step=step, batch_size=batch_size, num_mini_batches=num_mini_batches, seed=seed)
    assert np.bincount(where, minlength=num_mini_batches).tolist() == [3 * per_mini_batch] * num_mini_batches
    assert all(len(set(where[groups == g])) == 1 for g in set(groups))


def test_a_rank_that_sees_some_rows_agrees_with_one_that_sees_all():
    groups = np.arange(8, 16)
    options = {"step": 2, "batch_size": 8, "num_mini_batches": 4, "seed": 3}
    assert (mini_batch_of(groups, **options)[3:6] == mini_batch_of(groups[3:6], **options)).all()


def test_groups_meet_others_in_the_next_step_and_with_another_seed():
    options = {"batch_size": 32, "num_mini_batches": 4}
    first = mini_batch_of(np.arange(32), step=1, seed=3, **options)
    assert (first != mini_batch_of(np.arange(32, 64), step=2, seed=3, **options)).any()
    assert (first != mini_batch_of(np.arange(32), step=1, seed=4, **options)).any()
    assert (first != np.arange(32) // 8).any()  # not as the data lie


@pytest.mark.parametrize("groups", [[7, 12], [12, 16]])
def test_a_group_of_another_step_is_our_mistake(groups):
    # step 2 of 8 groups each has the groups 8 to 15
    options = {"step": 2, "batch_size": 8, "num_mini_batches": 2, "seed": 0}
    assert set(mini_batch_of(np.array([8, 15]), **options)) <= {0, 1}
    with pytest.raises(AssertionError, match="another step"):
        mini_batch_of(np.array(groups), **options)


def test_a_rank_without_rows_has_none_in_any_mini_batch():
    nothing = np.empty(0, np.int64)
    assert mini_batch_of(nothing, step=2, batch_size=8, num_mini_batches=2, seed=0).tolist() == []


def test_mini_batches_of_unequal_size_are_our_mistake():
    with pytest.raises(AssertionError, match="10, 4"):
        mini_batch_of(np.arange(10), step=1, batch_size=10, num_mini_batches=4, seed=0)
