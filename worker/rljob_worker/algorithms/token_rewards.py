"""From one reward per row to rewards per token."""

from __future__ import annotations

from torch import Tensor

from .masking import action_positions
from .segments import is_last


def token_level_rewards(rewards: Tensor, kl: Tensor | None, coefficient: float, row: Tensor, mask: Tensor) -> Tensor:
    """The reward of a row on its last action, minus the KL penalty on every action.

    r_t = -β · kl_t + [t is the last action of its row] · r

    Ziegler et al. 2019, https://arxiv.org/abs/1909.08593
    rewards: [rows]. kl: [tokens], or None for no penalty. row: int64 [tokens], ascending. mask: [tokens], not 0
    at actions, of which the end-of-sequence token is one. The reward of a row without an action is nowhere.
    Returns [tokens] in the dtype of `rewards`, 0 at observation tokens.
    """
    at = action_positions(mask)
    last = at[is_last(row.index_select(0, at))]
    tokens = rewards.new_zeros(len(row))
    if kl is not None:
        tokens = tokens.index_copy(0, at, -coefficient * kl.index_select(0, at).to(tokens.dtype))
    return tokens.index_add(0, last, rewards[row[last]])
