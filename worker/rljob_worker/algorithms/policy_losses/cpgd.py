"""Policy gradient bounded in the log-ratio, with a term that holds back drift from the old policy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .tokens import POLICY_LOSSES, PolicyTokenLosses, PolicyTokens

if TYPE_CHECKING:
    from rljob_api.v1alpha1.algorithm import LossSpec


def policy_drift(log_probs: Tensor, old_log_probs: Tensor, *, drift_clip: float) -> Tensor:
    """An estimate of KL(π_old ‖ π) per token, whose gradient coefficient is cut at `drift_clip`.

    D = ρ - 1 - log ρ where ρ - 1 <= c, continued by its tangent:   dD / d log π = min(ρ - 1, c)

    CPGD https://arxiv.org/abs/2505.12504 eq. 4-5, which writes it min(sg(ρ) - 1, c) · log π: the same gradient
    log_probs, old_log_probs: [tokens]; only log_probs carries a gradient. Returns [tokens], never negative.
    """
    log_ratio = log_probs - old_log_probs
    near = log_ratio.clamp(max=math.log1p(drift_clip))
    return torch.expm1(near) - near + drift_clip * (log_ratio - near)


def cpgd(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    drift_coefficient: float,
    drift_clip: float,
) -> PolicyTokenLosses:
    """Clipped policy gradient with policy drift.

    Φ = min(A·log ρ, A·clip(log ρ, log(1 - clip_low), log(1 + clip_high)))
    L = -Φ + drift_coefficient · D, with D the `policy_drift`

    CPGD https://arxiv.org/abs/2505.12504 eq. 2-5
    log_probs, old_log_probs, advantages: [tokens]; only log_probs carries a gradient.
    Returns losses [tokens] and the indicators `clip_fraction_low`, `clip_fraction_high` and
    `clip_fraction_drift`, where the drift's coefficient is cut.
    """
    log_ratio = log_probs - old_log_probs
    low, high = math.log1p(-clip_low), math.log1p(clip_high)
    clipped = torch.maximum(-advantages * log_ratio, -advantages * log_ratio.clamp(low, high))
    drift = policy_drift(log_probs, old_log_probs, drift_clip=drift_clip)
    return PolicyTokenLosses(
        clipped + drift_coefficient * drift,
        {
            "clip_fraction_low": (advantages < 0) & (log_ratio < low),
            "clip_fraction_high": (advantages > 0) & (log_ratio > high),
            "clip_fraction_drift": log_ratio > math.log1p(drift_clip),
        },
    )


@POLICY_LOSSES.register("CPGD")
def cpgd_loss(tokens: PolicyTokens, options: LossSpec) -> PolicyTokenLosses:
    """`cpgd` with the bounds of the job."""
    return cpgd(
        tokens.log_probs,
        tokens.old_log_probs,
        tokens.advantages,
        clip_low=options.clip_low,
        clip_high=options.clip_high,
        drift_coefficient=options.drift_coefficient,
        drift_clip=options.drift_clip,
    )
