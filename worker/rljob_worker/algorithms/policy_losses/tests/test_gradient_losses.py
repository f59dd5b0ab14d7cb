"""Losses whose gradient is the point: REINFORCE, CISPO, SAPO, CPGD, DPPO."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.algorithms.policy_losses import (
    binary_kl,
    cispo,
    cpgd,
    dppo_kl,
    dppo_tv,
    policy_drift,
    reinforce,
    sapo,
)
from rljob_worker.algorithms.tests.builders import double

CPGD = {"clip_low": 0.2, "clip_high": 0.25, "drift_coefficient": 0.0, "drift_clip": 2.0}


def differentiated(loss, log_probs):
    leaf = log_probs.clone().requires_grad_()
    result = loss(leaf)
    result.losses.sum().backward()
    return result, leaf.grad


def test_reinforce_by_hand():
    result, gradient = differentiated(lambda x: reinforce(x, double(2, -3)), double(-1, -2))
    assert result.losses.tolist() == [2, -6]
    assert gradient.tolist() == [-2, 3]


def test_trap_15_cispo_cuts_and_detaches_the_weight():
    # ρ = (½, 2, 8), cut at 1 + 3 = 4; A = 1; log π = log ρ - 1 with log π_old = -1
    log_probs = double(0.5, 2, 8).log() - 1
    result, gradient = differentiated(lambda x: cispo(x, double(-1, -1, -1), double(1, 1, 1), clip_high=3.0), log_probs)
    assert torch.allclose(result.losses, -double(0.5, 2, 4) * log_probs)
    assert torch.allclose(gradient, double(-0.5, -2, -4))  # through log π alone, and also where it is cut
    assert result.indicators["clip_fraction_high"].tolist() == [False, False, True]


def test_sapo_by_hand():
    # ρ = 1: σ(0)·4/τ = 2/τ, gradient 4/τ·τ/4 = 1.   ρ = 2, τ = 1: σ(1)·4 = 2.924234, gradient 4·σ'(1)·2 = 1.572896
    result, gradient = differentiated(
        lambda x: sapo(x, double(0, 0, 0), double(1, -1, 1), temperature_positive=1.0, temperature_negative=2.0),
        double(0, 0, math.log(2)),
    )
    assert torch.allclose(result.losses, double(-2, 1, -2.924234), atol=1e-6)
    assert torch.allclose(gradient, double(-1, 1, -1.572896), atol=1e-6)


def test_trap_17_cpgd_clips_the_log_ratio():
    # ln(1.25) = 0.2231, ln(0.8) = -0.2231;  A = 1: ln ρ = (0.1, 0.5, -0.5) -> -(0.1, 0.2231, -0.5)
    # A = -2: ln ρ = (0.5, -0.5) -> 2·0.5 = 1, 2·(-0.2231)
    bound = math.log(1.25)
    result, gradient = differentiated(
        lambda x: cpgd(x, double(0, 0, 0, 0, 0), double(1, 1, 1, -2, -2), **CPGD), double(0.1, 0.5, -0.5, 0.5, -0.5)
    )
    assert torch.allclose(result.losses, double(-0.1, -bound, 0.5, 1, -2 * bound))
    assert torch.allclose(gradient, double(-1, 0, -1, 2, 0))
    assert result.indicators["clip_fraction_high"].tolist() == [False, True, False, False, False]
    assert result.indicators["clip_fraction_low"].tolist() == [False, False, False, False, True]


def test_trap_17_the_drift_clips_its_gradient_coefficient():
    # c = 2: coefficient ρ - 1 = (-0.5, 0, 1) below, 2 where ρ = 4; value ρ - 1 - ln ρ, at ρ = 4 the tangent from ρ = 3
    log_probs = double(0.5, 1, 2, 4).log().requires_grad_()
    result = policy_drift(log_probs, torch.zeros(4), drift_clip=2.0)
    result.sum().backward()
    ln2, ln3 = math.log(2), math.log(3)
    tangent = (2 - ln3) + 2 * (2 * ln2 - ln3)
    assert torch.allclose(result, double(ln2 - 0.5, 0, 1 - ln2, tangent))
    assert torch.allclose(log_probs.grad, double(-0.5, 0, 1, 2))


def test_drift_is_added_with_its_coefficient():
    options = CPGD | {"drift_coefficient": 0.5}
    _, gradient = differentiated(lambda x: cpgd(x, double(0), double(0), **options), double(2).log())
    assert torch.allclose(gradient, double(0.5))


@given(st.floats(-40, 40), st.floats(0.1, 5))
def test_the_drift_is_never_negative_and_its_slope_never_above_the_bound(log_ratio, bound):
    log_probs = double(log_ratio).requires_grad_()
    drift = policy_drift(log_probs, double(0), drift_clip=bound)
    drift.backward()
    assert drift.item() >= 0.0
    assert log_probs.grad.item() == pytest.approx(min(math.expm1(log_ratio), bound), rel=1e-9, abs=1e-12)


def test_dppo_tv_by_hand():
    # p_old = ½, δ = 0.2.  A = 1: p 0.6 within, 0.8 beyond, 0.2 moves against.  A = -1: 0.6 against, 0.2 beyond
    log_probs, old = double(0.6, 0.8, 0.2, 0.6, 0.2).log(), double(0.5).log()
    advantages = double(1, 1, 1, -1, -1)
    result, gradient = differentiated(lambda x: dppo_tv(x, old, advantages, divergence_threshold=0.2), log_probs)
    assert torch.allclose(result.losses, double(-1.2, -1.6, -0.4, 1.2, 0.4))
    assert torch.allclose(gradient, double(-1.2, 0, -0.4, 1.2, 0))
    assert result.indicators["clip_fraction_high"].tolist() == [False, True, False, False, False]
    assert result.indicators["clip_fraction_low"].tolist() == [False, False, False, False, True]


def test_binary_kl_by_hand():
    # p_old = ½, p = ¼: ½ ln 2 + ½ ln(½ / ¾) = 0.143841
    assert binary_kl(double(0.25).log(), double(0.5).log()).item() == pytest.approx(0.143841, abs=1e-6)
    assert binary_kl(double(0.5).log(), double(0.5).log()).item() == 0.0


def test_the_binary_kl_of_a_token_that_was_or_becomes_certain_is_finite():
    # was certain: 1·(0 + 5).   becomes certain, all others at most 1e-8: e^-5·(-5) + (1 - e^-5)·ln((1 - e^-5) / 1e-8)
    certain, rare = double(0), double(-5)
    others = 1 - math.exp(-5)
    assert binary_kl(rare, certain).item() == pytest.approx(5, abs=1e-5)
    assert binary_kl(certain, rare).item() == pytest.approx(-5 * math.exp(-5) + others * math.log(others / 1e-8))


def test_dppo_kl_by_hand():
    # KL(½ ‖ ¼) = 0.1438 > 0.1 and A = -1 pushes on: no gradient; A = 1 pulls back: gradient -ρ = -½
    log_probs, old = double(0.25, 0.25).log(), double(0.5, 0.5).log()
    result, gradient = differentiated(lambda x: dppo_kl(x, old, double(-1, 1), divergence_threshold=0.1), log_probs)
    assert torch.allclose(result.losses, double(0.5, -0.5))
    assert torch.allclose(gradient, double(0, -0.5))


def test_dppo_cuts_the_weight_of_rare_tokens():
    # ρ = 100, cut at 20; p - p_old = 0.099 is within δ
    result, gradient = differentiated(
        lambda x: dppo_tv(x, double(0.001).log(), double(-1), divergence_threshold=0.15), double(0.1).log()
    )
    assert result.losses.tolist() == gradient.tolist() == [20]
