"""Policy losses: one number per action token, and indicators of where clipping is active."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from .ratios import bounded_exp
from .registries import POLICY_LOSSES

if TYPE_CHECKING:
    from rljob_api.v1alpha1.algorithm import LossSpec


@dataclass(frozen=True)
class PolicyTokens:
    """The action tokens of one micro-batch, packed; observations and masked rows are taken out before."""

    log_probs: Tensor  # [tokens], differentiable: of the current policy
    old_log_probs: Tensor  # [tokens]: of the policy at the start of the step
    advantages: Tensor  # [tokens]
    row: Tensor  # int64 [tokens], ascending
    num_rows: int  # rows of the micro-batch, rows without an action token included
    columns: Mapping[str, Tensor] = field(default_factory=dict)  # [tokens] each: what the loss registered as `reads`


@dataclass(frozen=True)
class PolicyTokenLosses:
    """Losses per action token, and indicators reported as fractions of tokens, `policy/<name>`."""

    losses: Tensor  # [tokens], differentiable
    indicators: Mapping[str, Tensor]  # bool [tokens] each


class PolicyLoss(Protocol):
    """A policy loss as the catalogue and `module:function` know it."""

    def __call__(self, tokens: PolicyTokens, options: LossSpec, /) -> PolicyTokenLosses: ...


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
    """`ppo_clip` with the bounds of the job."""
    return ppo_clip(
        tokens.log_probs,
        tokens.old_log_probs,
        tokens.advantages,
        clip_low=options.clip_low,
        clip_high=options.clip_high,
        dual_clip=options.dual_clip,
    )
