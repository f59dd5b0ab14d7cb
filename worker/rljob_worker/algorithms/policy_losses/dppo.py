"""Surrogates bounded in the divergence of a token's distribution, instead of in its ratio."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..ratios import bounded_exp
from .tokens import POLICY_LOSSES, PolicyTokenLosses, PolicyTokens

if TYPE_CHECKING:
    from rljob_api.v1alpha1.algorithm import LossSpec

MAX_RATIO = 20.0
"""Importance weights are cut here, as the paper advises in section 5.4: a divergence bounds probabilities, and a
rare token may have any ratio within it."""

_SMALLEST = 1e-8  # of the probability of all other tokens


def binary_kl(log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
    """KL(π_old ‖ π) between "this token" and "any other".

    p_old · log(p_old / p) + (1 - p_old) · log((1 - p_old) / (1 - p))

    DPPO https://arxiv.org/abs/2602.04879 section 4
    log_probs, old_log_probs: [tokens]. Returns [tokens], a lower bound of the KL of the whole distributions.
    """
    old_others, others = (-torch.expm1(x).clamp(max=-_SMALLEST) for x in (old_log_probs, log_probs))
    return old_log_probs.exp() * (old_log_probs - log_probs) + old_others * (old_others / others).log()


def dppo_tv(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, *, divergence_threshold: float
) -> PolicyTokenLosses:
    """Surrogate without the tokens that move on, in the direction of their advantage, beyond a total variation.

    L = -A · min(ρ, 20), no gradient where A > 0 and p - p_old > δ, or A <= 0 and p_old - p > δ

    DPPO https://arxiv.org/abs/2602.04879
    log_probs, old_log_probs, advantages: [tokens]; only log_probs carries a gradient, -A·min(ρ, 20) where the
    token is within. Returns losses [tokens] and the indicators `clip_fraction_low` and `clip_fraction_high`.
    """
    moved = (log_probs.exp() - old_log_probs.exp()).detach()
    beyond = moved.abs() > divergence_threshold
    return _within(log_probs, old_log_probs, advantages, beyond)


def dppo_kl(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, *, divergence_threshold: float
) -> PolicyTokenLosses:
    """Surrogate without the tokens that move on, in the direction of their advantage, beyond a KL divergence.

    L = -A · min(ρ, 20), no gradient where `binary_kl` > δ and A > 0 with p > p_old, or A <= 0 with p < p_old

    DPPO https://arxiv.org/abs/2602.04879
    log_probs, old_log_probs, advantages: [tokens]; only log_probs carries a gradient, -A·min(ρ, 20) where the
    token is within. Returns losses [tokens] and the indicators `clip_fraction_low` and `clip_fraction_high`.
    """
    beyond = binary_kl(log_probs.detach(), old_log_probs) > divergence_threshold
    return _within(log_probs, old_log_probs, advantages, beyond)


def _within(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, beyond: Tensor) -> PolicyTokenLosses:
    """Weighted policy gradient, without gradient where a token is `beyond` and its advantage moves it further."""
    current = log_probs.detach()
    low = beyond & (advantages <= 0) & (current < old_log_probs)
    high = beyond & (advantages > 0) & (current > old_log_probs)
    weight = bounded_exp(current - old_log_probs).clamp(max=MAX_RATIO)
    own = (log_probs - current) * ~(low | high)
    return PolicyTokenLosses(-advantages * weight * (1.0 + own), {"clip_fraction_low": low, "clip_fraction_high": high})


@POLICY_LOSSES.register("DPPOTV")
def dppo_tv_loss(tokens: PolicyTokens, options: LossSpec) -> PolicyTokenLosses:
    """`dppo_tv` with the threshold of the job."""
    return dppo_tv(
        tokens.log_probs,
        tokens.old_log_probs,
        tokens.advantages,
        divergence_threshold=options.divergence_threshold,
    )


@POLICY_LOSSES.register("DPPOKL")
def dppo_kl_loss(tokens: PolicyTokens, options: LossSpec) -> PolicyTokenLosses:
    """`dppo_kl` with the threshold of the job."""
    return dppo_kl(
        tokens.log_probs,
        tokens.old_log_probs,
        tokens.advantages,
        divergence_threshold=options.divergence_threshold,
    )
