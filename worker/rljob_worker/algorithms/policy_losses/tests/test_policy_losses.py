"""PPO's clipped losses and their relatives, by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.algorithms.policy_losses import POLICY_LOSSES, PolicyTokens, ppo_clip
from rljob_worker.algorithms.ratios import bounded_exp
from rljob_worker.algorithms.tests.builders import algorithm, double, rows_of


def log(*ratios: float) -> torch.Tensor:
    return double(*ratios).log()


def loss_and_gradient(ratios, advantages, **options):
    log_probs = log(*ratios).requires_grad_()
    result = ppo_clip(log_probs, torch.zeros_like(log_probs), double(*advantages), **options)
    result.losses.sum().backward()
    return result, log_probs.grad


def test_ppo_clip_by_hand():
    # A = 2, clip 0.2 / 0.3:  ρ 1.0 -> -2.0   ρ 0.5 -> -1.0 (not clipped)   ρ 1.5 -> -2·1.3 = -2.6
    # A = -2:                 ρ 1.0 ->  2.0   ρ 0.5 -> 2·0.8 = 1.6 (clipped)                       ρ 1.5 ->  3.0
    result, gradient = loss_and_gradient(
        [1.0, 0.5, 1.5, 1.0, 0.5, 1.5], [2, 2, 2, -2, -2, -2], clip_low=0.2, clip_high=0.3
    )
    assert torch.allclose(result.losses, double(-2, -1, -2.6, 2, 1.6, 3))
    # d(-A·ρ) / d log π = -A·ρ where not clipped, 0 where clipped
    assert torch.allclose(gradient, double(-2, -1, 0, 2, 0, 3))
    assert result.indicators["clip_fraction_low"].tolist() == [False, False, False, False, True, False]
    assert result.indicators["clip_fraction_high"].tolist() == [False, False, True, False, False, False]


def test_trap_16_the_dual_clip_bounds_negative_advantages_only():
    # c = 3.  A = -1: ρ 5 -> min(5, 3) = 3, no gradient; ρ 2 -> 2.   A = 1: ρ 5 -> -1.2 as without
    result, gradient = loss_and_gradient([5, 2, 5], [-1, -1, 1], clip_low=0.2, clip_high=0.2, dual_clip=3.0)
    assert torch.allclose(result.losses, double(3, 2, -1.2))
    assert torch.allclose(gradient, double(0, 2, 0))
    assert result.indicators["clip_fraction_dual"].tolist() == [True, False, False]


def test_trap_16_a_job_bounds_negative_advantages_by_its_dual_clip():
    # A = -1, ρ = 5: 5, and with the dual clip 3 of the job 3
    tokens = PolicyTokens(log(5), double(0), double(-1), rows_of([1]), 1)
    for options, expected in (({}, 5), ({"dualClip": 3.0}, 3)):
        spec = algorithm(loss={"name": "PPOClip", **options}).loss
        assert torch.allclose(POLICY_LOSSES["PPOClip"](tokens, spec).losses, double(expected))


def test_a_decision_has_one_ratio_which_is_the_product_of_those_of_its_tokens():
    # decisions of 2 and 1 tokens, bounds 0.8 and 1.2: 1.1 · 1.2 = 1.32 is clipped where its tokens are not, -1 · 1.2;
    # 1.5 · 0.7 = 1.05 is not where its tokens would be, 1 · 1.05; advantages of a decision are their mean, 2 and 0
    log_probs = log(1.1, 1.2, 1.5, 0.7).requires_grad_()
    spec = algorithm(loss={"ratio": "Decision"}).loss
    tokens = PolicyTokens(log_probs, torch.zeros(4).double(), double(0, 2, -2, 0), rows_of([2, 2]), 2)
    result = POLICY_LOSSES["PPOClip"](tokens, spec)
    assert torch.allclose(result.losses, double(-1.2, -1.2, 1.05, 1.05))
    assert result.indicators["clip_fraction_high"].tolist() == [True, True, False, False]
    result.losses.sum().backward()
    # each of the 2 losses of the second decision has the gradient 1.05 for both log-probs
    assert torch.allclose(log_probs.grad, double(0, 0, 2.1, 2.1))


def test_at_ratio_one_the_gradient_is_that_of_the_policy_gradient():
    _, gradient = loss_and_gradient([1.0, 1.0], [3, -4], clip_low=0.2, clip_high=0.2)
    assert gradient.tolist() == [-3, 4]


def test_zero_advantage_is_zero_loss_at_any_ratio():
    result, gradient = loss_and_gradient([0.1, 1, 1e12], [0, 0, 0], clip_low=0.2, clip_high=0.2)
    assert result.losses.abs().tolist() == [0, 0, 0]
    assert gradient.abs().tolist() == [0, 0, 0]
    assert not any(indicator.any() for indicator in result.indicators.values())


@pytest.mark.parametrize("log_ratio", [-1000.0, -100.0, -20.0, 20.0, 21.0, 100.0, 1000.0])
@pytest.mark.parametrize("advantage", [-1.5, 1.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_ratios_stay_finite(log_ratio, advantage, dtype):
    log_probs = torch.tensor([log_ratio], dtype=dtype, requires_grad=True)
    zero = torch.zeros(1, dtype=dtype)
    result = ppo_clip(log_probs, zero, zero + advantage, clip_low=0.2, clip_high=0.2)
    result.losses.sum().backward()
    assert torch.isfinite(result.losses).all()
    assert torch.isfinite(log_probs.grad).all()


def test_trap_12_beyond_the_bound_a_bad_token_is_still_pushed_back():
    log_probs = double(25.0).requires_grad_()
    ppo_clip(log_probs, double(0), double(-1), clip_low=0.2, clip_high=0.2).losses.sum().backward()
    assert log_probs.grad.item() == pytest.approx(math.exp(20))


def test_no_tokens():
    result, gradient = loss_and_gradient([], [], clip_low=0.2, clip_high=0.2, dual_clip=3.0)
    assert result.losses.tolist() == gradient.tolist() == []


def test_bounded_exp_by_hand():
    # e^20 at the seam from both sides; 3 above it e^20 · (1 + 3)
    result = bounded_exp(double(-2, 0, 20, 23))
    assert torch.allclose(result, double(math.exp(-2), 1, math.exp(20), 4 * math.exp(20)))


@given(st.floats(-30, 60), st.floats(0.01, 5))
def test_bounded_exp_increases(at, by):
    low, high = bounded_exp(double(at, at + by)).tolist()
    assert low < high


@given(st.floats(-30, 19.9))
def test_below_the_bound_value_and_gradient_are_the_exponential(at):
    x = double(at).requires_grad_()
    y = bounded_exp(x)
    y.backward()
    assert y.item() == pytest.approx(math.exp(at), rel=1e-12)
    assert x.grad.item() == pytest.approx(math.exp(at), rel=1e-12)
