"""Surrogates with one probability ratio per row.

Losses are still given per token, each with the ratio of its row, and belong with SequenceMeanTokenMean. Rows of one
trajectory are one row here, and a micro-batch holds whole trajectories, so that a ratio does not depend on how they are
split.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..ratios import bounded_exp
from ..segments import segment_mean
from .tokens import POLICY_LOSSES, PolicyTokenLosses, PolicyTokens

if TYPE_CHECKING:
    from rljob_api.v1alpha1.algorithm import LossSpec


def gspo(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    row: Tensor,
    *,
    num_rows: int,
    clip_low: float,
    clip_high: float,
) -> PolicyTokenLosses:
    """Clipped surrogate of the length-normalised ratio of a row.

    s = exp(mean over the row of log π - log π_old)
    L_t = max(-A_t·s, -A_t·clip(s, 1 - clip_low, 1 + clip_high))

    GSPO https://arxiv.org/abs/2507.18071 eq. 5-7
    log_probs, old_log_probs, advantages: [tokens]; only log_probs carries a gradient. row: int64 [tokens].
    Returns losses [tokens] and the indicators `clip_fraction_low` and `clip_fraction_high`.
    """
    log_ratio = segment_mean(log_probs - old_log_probs, row, num_rows)[row]
    return _clipped(bounded_exp(log_ratio), advantages, clip_low, clip_high)


def gspo_token(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    row: Tensor,
    *,
    num_rows: int,
    clip_low: float,
    clip_high: float,
) -> PolicyTokenLosses:
    """The value of `gspo`, with the gradient of each token's own probability.

    s_t = sg(s) · π_t / sg(π_t),   L_t = max(-A_t·s_t, -A_t·clip(s_t, 1 - clip_low, 1 + clip_high))

    GSPO-token https://arxiv.org/abs/2507.18071 eq. 13-15; the gradients are equal where a row has one advantage
    log_probs, old_log_probs, advantages: [tokens]; only log_probs carries a gradient. row: int64 [tokens].
    Returns losses [tokens] and the indicators `clip_fraction_low` and `clip_fraction_high`.
    """
    log_ratio = segment_mean(log_probs.detach() - old_log_probs, row, num_rows)[row]
    own = log_probs - log_probs.detach()
    return _clipped(bounded_exp(log_ratio) * (1.0 + own), advantages, clip_low, clip_high)


def gmpo(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    row: Tensor,
    *,
    num_rows: int,
    clip_low: float,
    clip_high: float,
) -> PolicyTokenLosses:
    """The geometric mean of a row's token ratios, each clipped where it has moved far enough.

    x_t = sgn(A_t) · min(sgn(A_t)·log ρ_t, sgn(A_t)·clip(log ρ_t, -clip_low, clip_high))
    L_t = -A_t · exp(mean over the row of x)

    GMPO https://arxiv.org/abs/2507.20673
    log_probs, old_log_probs, advantages: [tokens]; only log_probs carries a gradient. row: int64 [tokens].
    Returns losses [tokens] and the indicators `clip_fraction_low` and `clip_fraction_high`.
    """
    log_ratio = log_probs - old_log_probs
    near = log_ratio.clamp(-clip_low, clip_high)
    good, bad = advantages > 0, advantages < 0
    bounded = torch.where(good, torch.minimum(log_ratio, near), torch.maximum(log_ratio, near))
    ratio = bounded_exp(segment_mean(bounded, row, num_rows))[row]
    return PolicyTokenLosses(
        -advantages * ratio,
        {"clip_fraction_low": bad & (log_ratio < -clip_low), "clip_fraction_high": good & (log_ratio > clip_high)},
    )


def _clipped(ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> PolicyTokenLosses:
    losses = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1.0 - clip_low, 1.0 + clip_high))
    return PolicyTokenLosses(
        losses,
        {
            "clip_fraction_low": (advantages < 0) & (ratio < 1.0 - clip_low),
            "clip_fraction_high": (advantages > 0) & (ratio > 1.0 + clip_high),
        },
    )


@POLICY_LOSSES.register("GSPO")
def gspo_loss(tokens: PolicyTokens, options: LossSpec) -> PolicyTokenLosses:
    """`gspo` with the bounds of the job."""
    return gspo(
        tokens.log_probs,
        tokens.old_log_probs,
        tokens.advantages,
        tokens.row,
        num_rows=tokens.num_rows,
        clip_low=options.clip_low,
        clip_high=options.clip_high,
    )


@POLICY_LOSSES.register("GSPOToken")
def gspo_token_loss(tokens: PolicyTokens, options: LossSpec) -> PolicyTokenLosses:
    """`gspo_token` with the bounds of the job."""
    return gspo_token(
        tokens.log_probs,
        tokens.old_log_probs,
        tokens.advantages,
        tokens.row,
        num_rows=tokens.num_rows,
        clip_low=options.clip_low,
        clip_high=options.clip_high,
    )


@POLICY_LOSSES.register("GMPO")
def gmpo_loss(tokens: PolicyTokens, options: LossSpec) -> PolicyTokenLosses:
    """`gmpo` with the bounds of the job, which are of the log-ratio."""
    return gmpo(
        tokens.log_probs,
        tokens.old_log_probs,
        tokens.advantages,
        tokens.row,
        num_rows=tokens.num_rows,
        clip_low=options.clip_low,
        clip_high=options.clip_high,
    )
