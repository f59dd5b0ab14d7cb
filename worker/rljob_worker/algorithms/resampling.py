"""PF-PPO's resampling: the trajectories of a step, most often rows, are drawn anew by their rewards.

A draw is kept as the number of times it took each, which all of its rows have. Rows drawn twice would have one row_id
twice, would be scored and moved twice, and would lie in the way of every balance; a loss that counts a row w times is
the same loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from rljob_api.v1alpha1.algorithm import ResamplingSpec


def power(rewards: Tensor, options: ResamplingSpec) -> Tensor:
    """|r|^p, [rows]."""
    return rewards.abs() ** options.power


def max_min(rewards: Tensor, options: ResamplingSpec) -> Tensor:
    """1 for the best and the worst rows, 0 for others, [rows]."""
    return ((rewards == rewards.max()) | (rewards == rewards.min())).double()


def max_random(rewards: Tensor, options: ResamplingSpec) -> Tensor:
    """0.4 for the best rows, 0.1 for any other, [rows]."""
    return torch.full_like(rewards, 0.1).masked_fill(rewards == rewards.max(), 0.4)


WEIGHTINGS: dict[str, Callable[[Tensor, ResamplingSpec], Tensor]] = {
    "Power": power,
    "MaxMin": max_min,
    "MaxRandom": max_random,
}


def row_weights(rewards: Tensor, options: ResamplingSpec, *, seed: int, step: int) -> Tensor:
    """How often each row is drawn when as many rows as there are are drawn with replacement.

    P(row i) = f(r_i) / Σ_j f(r_j), with f the weighting; 1 for every row where all f are 0

    Shen and Zhang 2024, "Policy Filtration for RLHF", https://arxiv.org/abs/2409.06957
    rewards: float64 [rows], of the whole step. A function of its arguments alone, so every rank draws the same.
    Returns int64 [rows], adding up to rows.
    """
    weights = WEIGHTINGS[options.weighting](rewards.double(), options)
    total = weights.sum()
    if len(rewards) == 0 or total == 0:
        return torch.ones(len(rewards), dtype=torch.int64)
    draws = torch.from_numpy(np.random.default_rng((seed, step)).random(len(rewards)))
    cumulative = weights.cumsum(0)
    drawn = torch.searchsorted(cumulative, draws * cumulative[-1], right=True)
    drawn.clamp_(max=len(rewards) - 1)  # the largest draw times the total may round up to the total
    return torch.bincount(drawn, minlength=len(rewards))
