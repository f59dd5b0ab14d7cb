"""From rewards of rows, and of the steps of some, to rewards per token."""

from __future__ import annotations

from torch import Tensor

from ..masking import action_positions
from ..segments import is_last, segment_sum


def token_level_rewards(
    rewards: Tensor,
    kl: Tensor | None,
    coefficient: float,
    row: Tensor,
    mask: Tensor,
    steps: Tensor | None = None,
) -> Tensor:
    """The reward of a row where its steps end, what is left of it on the last action, minus the KL penalty on every
    action.

    r_t = s_t - β · kl_t + [t is the last action of its row] · (r - Σ s)

    Ziegler et al. 2019, https://arxiv.org/abs/1909.08593; steps: Math-Shepherd, https://arxiv.org/abs/2312.08935
    rewards: [rows]. kl: [tokens], or None for no penalty. row: int64 [tokens], ascending. mask: [tokens], not 0
    at actions, of which the end-of-sequence token is one. The reward of a row without an action is nowhere.
    steps: [tokens], or None where no reward is spread; a step that ends at an observation counts at the last action.
    Returns [tokens] in the dtype of `rewards`, 0 at observation tokens.
    """
    at = action_positions(mask)
    last = at[is_last(row.index_select(0, at))]
    tokens = rewards.new_zeros(len(row))
    if kl is not None:
        tokens = tokens.index_copy(0, at, -coefficient * kl.index_select(0, at).to(tokens.dtype))
    if steps is not None:
        spread = rewards.new_zeros(len(row)).index_copy(0, at, steps.index_select(0, at).to(tokens.dtype))
        tokens, rewards = tokens + spread, rewards - segment_sum(spread, row, len(rewards))
    return tokens.index_add(0, last, rewards[row[last]])
