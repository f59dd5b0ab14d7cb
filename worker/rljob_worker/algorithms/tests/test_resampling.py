"""PF-PPO's draw: its weights by hand, its frequencies, and the rows it never takes."""

import pytest
import torch

from rljob_api.v1alpha1.algorithm import ResamplingSpec
from rljob_worker.algorithms.resampling import WEIGHTINGS, row_weights
from rljob_worker.algorithms.tests.builders import double


def options(weighting="Power", power=2.0):
    return ResamplingSpec(method="PFPPO", weighting=weighting, power=power)


def test_weightings_by_hand():
    rewards = double(-2.0, 0.5, 1.0, 3.0, 3.0)
    assert WEIGHTINGS["Power"](rewards, options()).tolist() == [4.0, 0.25, 1.0, 9.0, 9.0]
    assert WEIGHTINGS["Power"](rewards, options(power=1.0)).tolist() == [2.0, 0.5, 1.0, 3.0, 3.0]
    assert WEIGHTINGS["MaxMin"](rewards, options()).tolist() == [1, 0, 0, 1, 1]
    assert WEIGHTINGS["MaxRandom"](rewards, options()).tolist() == [0.1, 0.1, 0.1, 0.4, 0.4]


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_as_many_rows_are_drawn_as_there_are_by_seed_and_step(weighting):
    rewards = torch.randn(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drawn = row_weights(rewards, options(weighting), seed=1, step=2)
    assert drawn.sum() == 50 and drawn.dtype == torch.int64
    assert drawn.equal(row_weights(rewards, options(weighting), seed=1, step=2))
    assert not drawn.equal(row_weights(rewards, options(weighting), seed=1, step=3))
    assert not drawn.equal(row_weights(rewards, options(weighting), seed=2, step=2))


def test_rows_of_weight_zero_are_never_drawn():
    assert row_weights(double(0.0, 1.0, 0.0, 1.0, 0.0), options(), seed=0, step=1)[[0, 2, 4]].tolist() == [0, 0, 0]
    assert row_weights(double(-1.0, 0.0, 0.2, 1.0), options("MaxMin"), seed=0, step=1)[[1, 2]].tolist() == [0, 0]


def test_frequencies_follow_the_weights():
    # 9 : 1, in 200 steps of 100 rows: 18,000 of 20,000 expected, with a standard deviation of 42
    rewards = torch.tensor([3.0, 1.0] * 50, dtype=torch.float64)
    drawn = sum(row_weights(rewards, options(), seed=0, step=step) for step in range(200))
    assert drawn[0::2].sum().item() == pytest.approx(18_000, abs=170)


def test_rewards_that_are_all_zero_leave_every_row_once():
    assert row_weights(double(0.0, 0.0, 0.0), options(), seed=0, step=1).tolist() == [1, 1, 1]
    assert row_weights(double(), options(), seed=0, step=1).tolist() == []
