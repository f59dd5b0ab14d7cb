"""Estimators that compare the rows of a group, by hand."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_worker.algorithms.advantages import (
    cpgd_advantages,
    grpo_advantages,
    opo_advantages,
    pass_at_k_advantages,
    rloo_advantages,
)
from rljob_worker.algorithms.tests.builders import double, ints

ESTIMATORS = {
    "GRPO": grpo_advantages,
    "DrGRPO": lambda r, g: grpo_advantages(r, g, normalize_std=False),
    "RLOO": rloo_advantages,
    "OPO": lambda r, g: opo_advantages(r, (r.abs() * 7).long() + 1, g),
    "PassAtK": pass_at_k_advantages,
    "CPGD StandardDeviation": lambda r, g: cpgd_advantages(r, g, weighting="StandardDeviation"),
    "CPGD ClipFilter": lambda r, g: cpgd_advantages(r, g, weighting="ClipFilter"),
    "CPGD Uniform": lambda r, g: cpgd_advantages(r, g, weighting="Uniform"),
}
every_estimator = pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS.keys())
REWARDS = st.lists(st.floats(-10, 10).map(lambda x: round(x, 3)), min_size=1, max_size=20)


def test_rloo_by_hand():
    # the mean of the others: of 4 it is (1 + 1) / 2 = 1, of a 1 it is (4 + 1) / 2 = 2.5
    assert rloo_advantages(double(4, 1, 1), ints(0, 0, 0)).tolist() == [3, -1.5, -1.5]


def test_rloo_of_a_group_of_two_is_the_difference():
    assert rloo_advantages(double(1, 5, 3, 3), ints(7, 7, 2, 2)).tolist() == [-4, 4, 0, 0]


def test_opo_by_hand():
    # baseline (3·1 + 1·0) / 4 = 0.75: the long row counts three times
    assert opo_advantages(double(1, 0), ints(3, 1), ints(0, 0)).tolist() == [0.25, -0.75]


def test_opo_of_rows_without_tokens_is_finite():
    # Σ|y| = 0: no baseline, and no token to carry the advantage
    assert opo_advantages(double(1, 0), ints(0, 0), ints(0, 0)).tolist() == [1, 0]


def test_pass_at_k_by_hand():
    # best 5, second 3: 5 - 3 = 2; mean 3, variance (4 + 0 + 4) / 2 = 4, std 2
    assert pass_at_k_advantages(double(1, 3, 5), ints(0, 0, 0), normalize_std=False).tolist() == [0, 0, 2]
    assert pass_at_k_advantages(double(1, 3, 5), ints(0, 0, 0), epsilon=0.0).tolist() == [0, 0, 1]


def test_pass_at_k_of_two_best_rows_is_zero():
    assert pass_at_k_advantages(double(1, 1, 0), ints(0, 0, 0)).tolist() == [0, 0, 0]


def test_cpgd_by_hand():
    # group 0: 0, 2 (mean 1, std √2); group 1: 1, 1; groups that vary: 1 of 2, weight 2
    rewards, groups = double(0, 2, 1, 1), ints(0, 0, 1, 1)
    result = cpgd_advantages(rewards, groups, weighting="StandardDeviation", epsilon=0.0)
    assert torch.allclose(result, double(-1, 1, 0, 0) / math.sqrt(2))
    assert cpgd_advantages(rewards, groups, weighting="ClipFilter").tolist() == [-2, 2, 0, 0]
    assert cpgd_advantages(rewards, groups, weighting="Uniform").tolist() == [-1, 1, 0, 0]


def test_trap_17_the_filter_weight_counts_prompts_over_all_ranks_and_is_capped():
    # this rank has 1 of 2 prompts that vary; over both ranks 1 of 5: weight 5, cut at 3
    def reduce(local: torch.Tensor) -> torch.Tensor:
        return local + double(3, 0)

    result = cpgd_advantages(double(0, 2, 1, 1), ints(0, 0, 1, 1), weighting="ClipFilter", reduce=reduce)
    assert result.tolist() == [-3, 3, 0, 0]


def test_trap_17_a_group_of_one_does_not_count_as_varied():
    # prompts: 3, varied: 1 -> weight 3; were the singletons varied, the weight would be 1
    result = cpgd_advantages(double(0, 2, 5, 6), ints(0, 0, 1, 2), weighting="ClipFilter")
    assert result.tolist() == [-3, 3, 0, 0]


@every_estimator
def test_trap_07_a_group_of_one_has_no_advantage(estimator):
    assert estimator(double(5, 1, 3), ints(0, 1, 1))[0] == 0.0
    assert estimator(double(5), ints(9)).tolist() == [0.0]


@every_estimator
def test_trap_09_equal_rewards_give_exactly_zero(estimator):
    assert estimator(double(0.1, 0.1, 0.1, 5, 6), ints(0, 0, 0, 1, 1))[:3].tolist() == [0.0, 0.0, 0.0]


@every_estimator
def test_no_rows(estimator):
    assert estimator(double(), ints()).tolist() == []


@every_estimator
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_finite_in_the_dtype_of_the_rewards(estimator, scale, dtype):
    rewards = (double(0, 1, 1, 1, 2, 3, 4) * scale).to(dtype)
    result = estimator(rewards, ints(0, 0, 1, 1, 2, 2, 3))
    assert result.dtype == dtype
    assert torch.isfinite(result).all()


@every_estimator
@settings(max_examples=40)
@given(rewards=REWARDS, seed=st.integers(0, 1000))
def test_trap_08_neither_order_nor_names_of_groups_matter(estimator, rewards, seed):
    generator = torch.Generator().manual_seed(seed)
    values = double(*rewards)
    groups = torch.randint(0, 4, (len(rewards),), generator=generator)
    order = torch.randperm(len(rewards), generator=generator)
    result = estimator(values, groups)
    names = torch.randperm(4, generator=generator) * 1000 - 7
    assert torch.allclose(estimator(values[order], names[groups][order]), result[order], rtol=0, atol=1e-9)


@settings(max_examples=40)
@given(rewards=REWARDS, seed=st.integers(0, 1000), shift=st.floats(-5, 5).map(lambda x: round(x, 3)))
def test_baselines_take_out_a_shift_of_all_rewards(rewards, seed, shift):
    generator = torch.Generator().manual_seed(seed)
    groups = torch.randint(0, 3, (len(rewards),), generator=generator)
    lengths = torch.randint(1, 9, (len(rewards),), generator=generator)
    values = double(*rewards)
    for result, shifted in (
        (rloo_advantages(values, groups), rloo_advantages(values + shift, groups)),
        (opo_advantages(values, lengths, groups), opo_advantages(values + shift, lengths, groups)),
        (
            pass_at_k_advantages(values, groups, normalize_std=False),
            pass_at_k_advantages(values + shift, groups, normalize_std=False),
        ),
    ):
        assert torch.allclose(result, shifted, rtol=0, atol=1e-9)


@settings(max_examples=40)
@given(rewards=REWARDS, seed=st.integers(0, 1000))
def test_what_sums_to_zero_within_a_group(rewards, seed):
    generator = torch.Generator().manual_seed(seed)
    groups = torch.randint(0, 3, (len(rewards),), generator=generator)
    lengths = torch.randint(1, 9, (len(rewards),), generator=generator)
    values = double(*rewards)
    leave_one_out, weighted = rloo_advantages(values, groups), opo_advantages(values, lengths, groups) * lengths
    for group in groups.unique():
        assert abs(leave_one_out[groups == group].sum()) < 1e-9
        assert abs(weighted[groups == group].sum()) < 1e-9
