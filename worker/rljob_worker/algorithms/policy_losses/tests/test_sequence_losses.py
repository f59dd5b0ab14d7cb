"""Losses whose ratio is that of a whole sequence: GSPO, GMPO and others."""

import math

import pytest
import torch

from rljob_worker.algorithms.policy_losses import gmpo, gspo, gspo_token
from rljob_worker.algorithms.tests.builders import double, rows_of

LN2 = math.log(2)
CLIPS = {"clip_low": 0.2, "clip_high": 0.3}


def loss_and_gradient(loss, log_ratios, advantages, lengths, **options):
    log_probs = double(*log_ratios).requires_grad_()
    result = loss(
        log_probs, torch.zeros_like(log_probs), double(*advantages), rows_of(lengths), num_rows=len(lengths), **options
    )
    result.losses.sum().backward()
    return result, log_probs.grad


@pytest.mark.parametrize("loss", [gspo, gspo_token])
def test_trap_14_the_ratio_of_a_row_is_the_geometric_mean(loss):
    # row 0: ln ρ = (ln 2, -ln 2 + 2 ln 1.1): mean ln 1.1, s = 1.1 inside the clip.  A = 2: -2.2 per token
    # row 1: ln ρ = ln 2, s = 2 clipped: A = 1 -> -1.3, no gradient; row 2: A = -1 -> 2, gradient 2
    ratios = [LN2, -LN2 + 2 * math.log(1.1), LN2, LN2]
    result, gradient = loss_and_gradient(loss, ratios, [2, 2, 1, -1], [2, 1, 1], **CLIPS)
    assert torch.allclose(result.losses, double(-2.2, -2.2, -1.3, 2))
    # d/d log π of both tokens of row 0 together: each gets 2 · (-A·s) / 2 = -2.2
    assert torch.allclose(gradient, double(-2.2, -2.2, 0, 2))
    assert result.indicators["clip_fraction_high"].tolist() == [False, False, True, False]
    assert not result.indicators["clip_fraction_low"].any()


def test_trap_14_gspo_token_has_the_value_of_gspo_and_gradients_of_each_token_alone():
    # s = 1.1; advantages 2 and -1: GSPO's gradient is shared, (-2·1.1 + 1·1.1) / 2 = -0.55 each
    ratios = [math.log(1.1), math.log(1.1)]
    shared, both = loss_and_gradient(gspo, ratios, [2, -1], [2], **CLIPS)
    alone, own = loss_and_gradient(gspo_token, ratios, [2, -1], [2], **CLIPS)
    assert torch.allclose(shared.losses, alone.losses)
    assert torch.allclose(both, double(-0.55, -0.55))
    assert torch.allclose(own, double(-2.2, 1.1))


def test_gmpo_by_hand():
    # A = 1, clip (-0.2, 0.3): ln ρ = (1, -1) -> (0.3, -1): mean -0.35, loss -e^-0.35; the clipped token has no gradient
    result, gradient = loss_and_gradient(gmpo, [1, -1], [1, 1], [2], **CLIPS)
    expected = -math.exp(-0.35)
    assert torch.allclose(result.losses, double(expected, expected))
    assert torch.allclose(gradient, double(0, expected))
    # A = -1: ln ρ = (1, -1) -> (1, -0.2): mean 0.4, loss e^0.4
    result, gradient = loss_and_gradient(gmpo, [1, -1], [-1, -1], [2], **CLIPS)
    assert torch.allclose(result.losses, double(math.exp(0.4), math.exp(0.4)))
    assert torch.allclose(gradient, double(math.exp(0.4), 0))
    assert result.indicators["clip_fraction_low"].tolist() == [False, True]


@pytest.mark.parametrize("loss", [gspo, gspo_token, gmpo])
def test_rows_do_not_mix(loss):
    together, gradient = loss_and_gradient(loss, [0.1, -0.3, 0.2], [1, 1, -2], [2, 0, 1], **CLIPS)
    first, of_first = loss_and_gradient(loss, [0.1, -0.3], [1, 1], [2], **CLIPS)
    last, of_last = loss_and_gradient(loss, [0.2], [-2], [1], **CLIPS)
    assert torch.equal(together.losses, torch.cat([first.losses, last.losses]))
    assert torch.equal(gradient, torch.cat([of_first, of_last]))
