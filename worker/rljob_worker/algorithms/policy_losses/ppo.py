"""Surrogates bounded in the probability ratio of a token."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..ratios import bounded_exp
from ..segments import segment_mean, segment_sum
from .tokens import POLICY_LOSSES, PolicyTokenLosses, PolicyTokens

if TYPE_CHECKING:
    from rljob_api.v1alpha1.algorithm import LossSpec


def ppo_clip(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> PolicyTokenLosses:
    """Clipped surrogate loss, with separate bounds and the optional dual clip for negative advantages.

    ρ = exp(log π - log π_old)
    L = max(-A·ρ, -A·clip(ρ, 1 - clip_low, 1 + clip_high))
    L = min(L, -A·c) where A < 0, with a dual clip c > 1

    PPO https://arxiv.org/abs/1707.06347
    clip-higher https://arxiv.org/abs/2503.14476, dual clip https://arxiv.org/abs/1912.09729
    log_probs, old_log_probs, advantages: [tokens]; only log_probs carries a gradient.
    Returns losses [tokens] and the indicators `clip_fraction_low` (A < 0, ρ below the range),
    `clip_fraction_high` (A > 0, ρ above it) and `clip_fraction_dual`; where one holds the gradient is 0.
    """
    ratio = bounded_exp(log_probs - old_log_probs)
    losses = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1.0 - clip_low, 1.0 + clip_high))
    good, bad = advantages > 0, advantages < 0
    indicators = {
        "clip_fraction_low": bad & (ratio < 1.0 - clip_low),
        "clip_fraction_high": good & (ratio > 1.0 + clip_high),
    }
    if dual_clip is not None:
        losses = torch.where(bad, torch.minimum(losses, -advantages * dual_clip), losses)
        indicators["clip_fraction_dual"] = bad & (ratio > dual_clip)
    return PolicyTokenLosses(losses, indicators)


@POLICY_LOSSES.register("PPOClip")
def ppo_clip_loss(tokens: PolicyTokens, options: LossSpec) -> PolicyTokenLosses:
    """`ppo_clip` with the bounds of the job, of tokens or of decisions."""
    if options.ratio == "Decision":
        tokens = of_decisions(tokens)
    return ppo_clip(
        tokens.log_probs,
        tokens.old_log_probs,
        tokens.advantages,
        clip_low=options.clip_low,
        clip_high=options.clip_high,
        dual_clip=options.dual_clip,
    )


def of_decisions(tokens: PolicyTokens) -> PolicyTokens:
    """With what a decision has in the place of what each of its tokens has: the sum of log-probs, the mean of
    advantages. A row is a decision."""

    def summed(values: Tensor) -> Tensor:
        return segment_sum(values, tokens.row, tokens.num_rows)[tokens.row]

    return replace(
        tokens,
        log_probs=summed(tokens.log_probs),
        old_log_probs=summed(tokens.old_log_probs),
        advantages=segment_mean(tokens.advantages, tokens.row, tokens.num_rows)[tokens.row],
    )


def sapo(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    *,
    temperature_positive: float,
    temperature_negative: float,
) -> PolicyTokenLosses:
    """A gate in place of a clip: smooth, with its full slope at ratio 1.

    L = -A · 4/τ · σ(τ · (ρ - 1)),   τ = temperature_positive where A > 0, else temperature_negative

    SAPO https://arxiv.org/abs/2511.20347
    log_probs, old_log_probs, advantages: [tokens]; only log_probs carries a gradient, which is -A at ρ = 1.
    Returns losses [tokens].
    """
    ratio = bounded_exp(log_probs - old_log_probs)
    # filled on the device, to which `new_tensor` copies
    positive, negative = ratio.new_full((), temperature_positive), ratio.new_full((), temperature_negative)
    temperature = torch.where(advantages > 0, positive, negative)
    return PolicyTokenLosses(-advantages * torch.sigmoid(temperature * (ratio - 1.0)) * (4.0 / temperature))


@POLICY_LOSSES.register("SAPO")
def sapo_loss(tokens: PolicyTokens, options: LossSpec) -> PolicyTokenLosses:
    """`sapo` with the temperatures of the job."""
    return sapo(
        tokens.log_probs,
        tokens.old_log_probs,
        tokens.advantages,
        temperature_positive=options.temperature_positive,
        temperature_negative=options.temperature_negative,
    )
