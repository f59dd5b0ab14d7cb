"""KL estimators, by hand, and their gradients."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.algorithms import KL_ESTIMATORS
from rljob_worker.algorithms.kl import (
    KLController,
    abs_k1,
    full,
    k1,
    k1_straight,
    k2,
    k3,
    k3_straight,
    k3_unclamped,
    k3_weighted,
)
from rljob_worker.algorithms.tests.builders import double

LN2 = math.log(2)


def value_and_gradient(estimator, log_prob, ref, old):
    log_probs = double(log_prob).requires_grad_()
    result = estimator(log_probs, double(ref), double(old))
    result.sum().backward()
    return result.item(), log_probs.grad.item()


def test_k1_by_hand():
    # π = 2·π_ref: x = ln 2
    assert value_and_gradient(k1, LN2, 0.0, 0.0) == pytest.approx((LN2, 1.0))


def test_k2_by_hand():
    assert value_and_gradient(k2, LN2, 0.0, 0.0) == pytest.approx((LN2**2 / 2, LN2))


def test_k3_by_hand():
    # r = ½: ½ - 1 + ln 2 = 0.1931;  gradient 1 - r = ½
    assert value_and_gradient(k3, LN2, 0.0, 0.0) == pytest.approx((LN2 - 0.5, 0.5))


def test_k3_weighted_by_hand():
    # ρ = 2 (π_old = ½·π), k3 = ln 2 - ½: value 2·k3; gradient ρ·k3 + ρ·(1 - r) = 2·ln 2 - 1 + 1 = 2·ln 2
    assert value_and_gradient(k3_weighted, LN2, 0.0, 0.0) == pytest.approx((2 * LN2 - 1, 2 * LN2))


def test_trap_11_gradients_as_losses_on_policy():
    """Expectations under π over three tokens, against autograd through the exact divergences."""
    logits = double(0.3, -0.2, 0.9).requires_grad_()
    ref = torch.log_softmax(double(0.1, 0.5, -0.4), 0)

    def expected_gradient(estimator):
        log_p = torch.log_softmax(logits, 0)
        loss = (log_p.exp().detach() * estimator(log_p, ref, log_p.detach())).sum()
        return torch.autograd.grad(loss, logits)[0]

    def exact(divergence):
        return torch.autograd.grad(divergence(torch.log_softmax(logits, 0)), logits)[0]

    reverse = exact(lambda log_p: (log_p.exp() * (log_p - ref)).sum())
    forward = exact(lambda log_p: (ref.exp() * (ref - log_p)).sum())
    assert torch.allclose(expected_gradient(k1), torch.zeros(3, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(expected_gradient(k2), reverse)
    assert torch.allclose(expected_gradient(k3), forward)
    assert torch.allclose(expected_gradient(k3_weighted), reverse)


def test_trap_11_values_are_estimates_of_the_divergence():
    log_p, ref = torch.log_softmax(double(0.3, -0.2, 0.9), 0), torch.log_softmax(double(0.1, 0.5, -0.4), 0)
    p = log_p.exp()
    exact = (p * (log_p - ref)).sum()
    assert torch.allclose((p * k1(log_p, ref, log_p)).sum(), exact)
    assert torch.allclose((p * k3(log_p, ref, log_p)).sum(), exact)
    assert torch.allclose((p * k3_weighted(log_p, ref, log_p)).sum(), exact)


def test_trap_12_reports_are_not_clamped():
    # log r = 30: e^30 - 31
    assert k3_unclamped(double(-30), double(0)).item() == pytest.approx(math.exp(30) - 31)


@pytest.mark.parametrize("estimator", [k1, k2, k3, k3_weighted])
@pytest.mark.parametrize("gap", [-1000.0, -20.0, 20.0, 1000.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_trap_12_far_from_the_reference_losses_are_finite_and_keep_a_gradient(estimator, gap, dtype):
    log_probs = torch.tensor([gap], dtype=dtype, requires_grad=True)
    zero = torch.zeros(1, dtype=dtype)
    result = estimator(log_probs, zero, log_probs.detach())
    result.sum().backward()
    assert torch.isfinite(result).all()
    assert torch.isfinite(log_probs.grad).all()
    assert torch.sign(log_probs.grad).item() == (1 if estimator is k1 else math.copysign(1, gap))


@pytest.mark.parametrize("log_r", [-30.0, 5.0, 18.0, 40.0])
def test_the_weighted_gradient_does_not_drown_in_float32(log_r):
    # ρ = 1: the gradient is log π - log π_ref = -log r
    log_probs = torch.tensor([-log_r], requires_grad=True)
    k3_weighted(log_probs, torch.zeros(1), log_probs.detach()).sum().backward()
    assert log_probs.grad.item() == -log_r


@given(st.floats(-15, 15))
def test_k3_is_never_negative_and_equals_its_formula(log_r):
    result = k3(double(-log_r), double(0), double(0)).item()
    assert result >= 0
    assert result == pytest.approx(math.expm1(log_r) - log_r, rel=1e-12)


def test_k3_keeps_its_digits_near_zero():
    # x²/2 for small x: 5e-13, which exp(x) - 1 - x in float32 would lose
    assert k3(torch.tensor([-1e-3]), torch.zeros(1), torch.zeros(1)).item() == pytest.approx(5e-7, rel=1e-2)


def test_adaptive_controller_by_hand():
    controller = KLController(0.1, target=2.0, horizon=100.0)
    # KL 2.2: error +0.1;  0.1 · (1 + 0.1 · 10/100) = 0.101
    assert controller.update(2.2, 10).coefficient == pytest.approx(0.101)
    # KL 20: error clipped to +0.2; KL 0: to -0.2
    assert controller.update(20.0, 10).coefficient == pytest.approx(0.102)
    assert controller.update(0.0, 10).coefficient == pytest.approx(0.098)


def test_controller_is_a_value():
    controller = KLController(0.1, target=2.0)
    controller.update(20.0, 10)
    assert controller.coefficient == 0.1


@pytest.mark.parametrize("kl", [float("nan"), float("inf"), float("-inf")])
def test_a_kl_that_is_no_number_leaves_the_coefficient(kl):
    controller = KLController(0.1, target=1.0, horizon=100)
    assert controller.update(kl, 50) == controller


def test_fixed_controller_stays():
    controller = KLController(0.1)
    assert controller.update(20.0, 10) == controller


def test_controller_resumes_from_its_checkpoint():
    job = KLController(0.1, target=2.0, horizon=100.0)
    learned = job.update(20.0, 10)
    assert job.with_state(learned.state_dict()) == learned
    # with a fixed coefficient the job decides, so that editing it before a resume has an effect
    assert KLController(0.5).with_state({"coefficient": 0.1}).coefficient == 0.5


def test_abs_k1_by_hand():
    assert value_and_gradient(abs_k1, LN2, 0.0, 0.0) == pytest.approx((LN2, 1.0))
    assert value_and_gradient(abs_k1, -LN2, 0.0, 0.0) == pytest.approx((LN2, -1.0))


def test_trap_11_straight_estimators_have_their_own_value_and_the_gradient_of_k2():
    # π = ½·π_ref: k1 = -ln 2, k3 = 2 - 1 - ln 2; the gradient of k2 is ln π - ln π_ref = -ln 2
    assert value_and_gradient(k1_straight, -LN2, 0.0, 0.0) == pytest.approx((-LN2, -LN2))
    assert value_and_gradient(k3_straight, -LN2, 0.0, 0.0) == pytest.approx((1 - LN2, -LN2))


def test_full_by_hand():
    # p = (¼, ¾), q = (½, ½): ¼ ln ½ + ¾ ln 3/2 = 0.130812
    p, q = double(0.25, 0.75).log()[None], double(0.5, 0.5).log()[None]
    assert full(p, q, p).item() == pytest.approx(0.130812, abs=1e-6)


def test_trap_11_full_is_what_the_others_estimate():
    """The expectation of K1 and K3 over the tokens of a vocabulary is the divergence; K2 and |K1| miss it."""
    p = torch.log_softmax(double(0.3, -0.2, 0.9), 0)
    q = torch.log_softmax(double(0.1, 0.5, -0.4), 0)
    exact = full(p[None], q[None], p[None]).item()
    expected = {estimator: (p.exp() * estimator(p, q, p)).sum().item() for estimator in (k1, k3, k2, abs_k1)}
    assert expected[k1] == pytest.approx(exact, abs=1e-12)
    assert expected[k3] == pytest.approx(exact, abs=1e-12)
    assert abs(expected[k2] - exact) > 1e-3
    assert expected[abs_k1] > exact


@pytest.mark.parametrize("name", sorted(set(KL_ESTIMATORS.names()) - {"Full"}))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_estimator_is_finite_at_extreme_ratios_and_without_tokens(name, dtype):
    log_probs = torch.tensor([-1000, -20, 0, 20, 1000], dtype=dtype, requires_grad=True)
    zero = torch.zeros(5, dtype=dtype)
    result = KL_ESTIMATORS[name](log_probs, zero, zero)
    result.sum().backward()
    assert torch.isfinite(result).all()
    assert log_probs.grad is not None
    assert torch.isfinite(log_probs.grad).all()
    assert KL_ESTIMATORS[name](zero[:0], zero[:0], zero[:0]).tolist() == []
