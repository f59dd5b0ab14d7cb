"""Losses that keep entropy by holding back the few tokens that would lower it most.

A token's covariance is that of log-probability and advantage, taken over the mini-batch of all ranks before its
update, with the log-probabilities of the old policy. So the choice depends neither on micro-batches nor on ranks;
where it is random, it is a function of seed, row and position.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rljob_worker.random_bits import random_bits

from ..ratios import bounded_exp
from .ppo import ppo_clip
from .selection import digits_of_bits, digits_of_floats, largest_over_ranks
from .tokens import POLICY_LOSSES, MiniBatchTokens, PolicyTokenLosses, PolicyTokens

if TYPE_CHECKING:
    from rljob_api.v1alpha1.algorithm import LossSpec

    from ..advantages import Reduce

HELD_BACK = "held_back"
"""Column of `prepare`: bool [tokens], whether the loss holds the token back."""


def covariances(old_log_probs: Tensor, advantages: Tensor, reduce: Reduce) -> tuple[Tensor, int]:
    """Each token's share in the covariance of log-probability and advantage, and the tokens of all ranks.

    cov_t = (log π_t - mean log π) · (A_t - mean A), means over the tokens of all ranks

    https://arxiv.org/abs/2505.22617 eq. 10
    old_log_probs, advantages: [tokens]. reduce: sums over ranks, called once. Returns float64 [tokens] and a count.
    """
    columns = torch.stack([torch.ones_like(advantages), old_log_probs, advantages]).double()
    count, total_log_prob, total_advantage = reduce(columns.sum(1)).tolist()
    centred = columns[1:] - torch.tensor([[total_log_prob], [total_advantage]]).double() / max(count, 1.0)
    return centred.prod(0), round(count)


def clip_cov(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    held_back: Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> PolicyTokenLosses:
    """`ppo_clip`, and nothing from the tokens held back.

    L = [not held back] · max(-A·ρ, -A·clip(ρ, 1 - clip_low, 1 + clip_high))

    Clip-Cov https://arxiv.org/abs/2505.22617 eq. 11-12
    log_probs, old_log_probs, advantages: [tokens]; only log_probs carries a gradient. held_back: bool [tokens].
    Returns losses [tokens], the indicators of `ppo_clip` and `held_back`.
    """
    result = ppo_clip(log_probs, old_log_probs, advantages, clip_low=clip_low, clip_high=clip_high)
    losses = torch.where(held_back, 0.0, result.losses)
    return PolicyTokenLosses(losses, {**result.indicators, HELD_BACK: held_back})


def kl_cov(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, held_back: Tensor, *, kl_coefficient: float
) -> PolicyTokenLosses:
    """The unclipped surrogate, with a penalty on the tokens held back.

    L = -A·ρ + [held back] · kl_coefficient · |log ρ|

    KL-Cov https://arxiv.org/abs/2505.22617 eq. 13-14
    log_probs, old_log_probs, advantages: [tokens]; only log_probs carries a gradient. held_back: bool [tokens].
    Returns losses [tokens] and the indicator `held_back`.
    """
    log_ratio = log_probs - old_log_probs
    penalty = torch.where(held_back, kl_coefficient * log_ratio.abs(), 0.0)
    return PolicyTokenLosses(-advantages * bounded_exp(log_ratio) + penalty, {HELD_BACK: held_back})


class ClipCov:
    """`clip_cov`, with tokens held back at random among those whose covariance lies between the bounds."""

    def prepare(self, tokens: MiniBatchTokens, options: LossSpec, reduce: Reduce, seed: int, /) -> Mapping[str, Tensor]:
        covariance, num_tokens = covariances(tokens.old_log_probs, tokens.advantages, reduce)
        among = (covariance > options.covariance_low) & (covariance < options.covariance_high)
        count = max(int(options.covariance_fraction * num_tokens), 1)
        return {HELD_BACK: largest_over_ranks(_random_digits(tokens, seed), among, count, reduce)}

    def __call__(self, tokens: PolicyTokens, options: LossSpec, /) -> PolicyTokenLosses:
        return clip_cov(
            tokens.log_probs,
            tokens.old_log_probs,
            tokens.advantages,
            tokens.columns[HELD_BACK],
            clip_low=options.clip_low,
            clip_high=options.clip_high,
        )


class KLCov:
    """`kl_cov`, with the tokens of largest covariance held back; random numbers decide between equal ones."""

    def prepare(self, tokens: MiniBatchTokens, options: LossSpec, reduce: Reduce, seed: int, /) -> Mapping[str, Tensor]:
        covariance, num_tokens = covariances(tokens.old_log_probs, tokens.advantages, reduce)
        count = max(int(options.covariance_fraction * num_tokens), 1)
        digits = torch.cat([digits_of_floats(covariance), _random_digits(tokens, seed)])
        among = torch.ones_like(covariance, dtype=torch.bool)
        return {HELD_BACK: largest_over_ranks(digits, among, count, reduce)}

    def __call__(self, tokens: PolicyTokens, options: LossSpec, /) -> PolicyTokenLosses:
        return kl_cov(
            tokens.log_probs,
            tokens.old_log_probs,
            tokens.advantages,
            tokens.columns[HELD_BACK],
            kl_coefficient=options.kl_coefficient,
        )


def _random_digits(tokens: MiniBatchTokens, seed: int) -> Tensor:
    # ~seed: the bits of `seed` itself have drawn the tokens
    return digits_of_bits(random_bits(~seed, tokens.row_ids.numpy(), tokens.positions.numpy()))


POLICY_LOSSES.register("ClipCov")(ClipCov())
POLICY_LOSSES.register("KLCov")(KLCov())
