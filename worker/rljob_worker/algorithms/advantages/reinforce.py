"""Advantages from the rewards still to come, without a critic and without a group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from ..masking import action_positions, scatter_actions
from ..segments import discounted_suffix_sum, segment_count
from .samples import ADVANTAGES, Advantages, Reduce, Samples

if TYPE_CHECKING:
    from rljob_api.v1alpha1.algorithm import AdvantageSpec


def discounted_returns(
    token_level_rewards: Tensor, row: Tensor, mask: Tensor, *, num_rows: int, gamma: float
) -> Tensor:
    """The rewards of an action and of all later ones of its row.

    G_t = Σ_{k >= t} γ^(k-t) · r_k, counted in actions: observations are crossed without a discount

    REINFORCE++ https://arxiv.org/abs/2501.03262 (which whitens them)
    token_level_rewards: [tokens]. row: int64 [tokens], ascending. mask: [tokens], not 0 at actions.
    Returns [tokens] in the dtype of `token_level_rewards`, 0 at observations; in float64 inside.
    """
    at = action_positions(mask)
    lengths = segment_count(row.index_select(0, at), num_rows)
    return scatter_actions(discounted_suffix_sum(token_level_rewards.index_select(0, at), lengths, gamma), at, len(row))


def remax_advantages(
    token_level_rewards: Tensor, baseline_rewards: Tensor, row: Tensor, mask: Tensor, *, num_rows: int
) -> Tensor:
    """The rewards still to come, minus the reward of the greedy response to the same prompt.

    A_t = Σ_{k >= t} r_k - r(greedy)

    ReMax https://arxiv.org/abs/2310.10505
    token_level_rewards: [tokens]. baseline_rewards: [rows]. row: int64 [tokens], ascending. mask: [tokens].
    Returns [tokens] in the dtype of `token_level_rewards`, 0 at observations.
    """
    returns = discounted_returns(token_level_rewards, row, mask, num_rows=num_rows, gamma=1.0)
    return (returns - baseline_rewards.to(returns.dtype)[row]) * mask.bool()


@ADVANTAGES.register("ReinforcePlusPlus")
def reinforce_plus_plus(samples: Samples, options: AdvantageSpec, reduce: Reduce) -> Advantages:
    """`discounted_returns`, to be whitened."""
    returns = discounted_returns(
        samples.token_level_rewards, samples.row, samples.mask, num_rows=samples.num_rows, gamma=options.gamma
    )
    return Advantages(returns)


@ADVANTAGES.register("ReMax")
def remax(samples: Samples, options: AdvantageSpec, reduce: Reduce) -> Advantages:
    """`remax_advantages`; the greedy response is judged by its reward alone."""
    advantages = remax_advantages(
        samples.token_level_rewards,
        samples.columns["baseline_rewards"].double(),
        samples.row,
        samples.mask,
        num_rows=samples.num_rows,
    )
    return Advantages(advantages)
