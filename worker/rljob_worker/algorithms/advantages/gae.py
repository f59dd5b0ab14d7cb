"""Generalized advantage estimation (GAE): rewards compared with the values of a critic."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..masking import action_positions, scatter_actions
from ..segments import discounted_suffix_sum, is_last, row_chunks, segment_count
from .samples import ADVANTAGES, Advantages, Reduce, Samples

if TYPE_CHECKING:
    from rljob_api.v1alpha1.algorithm import AdvantageSpec


def gae(
    token_level_rewards: Tensor,
    values: Tensor,
    row: Tensor,
    mask: Tensor,
    *,
    num_rows: int,
    gamma: float,
    lam: float,
    bootstrap_values: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Generalized advantage estimation over the actions of each row.

    δ_t = r_t + γ · V_{t+1} - V_t,   A_t = Σ_k (γλ)^k · δ_{t+k},   R_t = A_t + V_t

    GAE https://arxiv.org/abs/1506.02438
    token_level_rewards, values: [tokens]; values[t] is the state before token t. row: int64 [tokens],
    ascending. mask: [tokens], not 0 at actions. bootstrap_values: [rows], the state after the last action.
    Observation tokens are crossed: t + 1 is the next action, only actions are discounted, and rewards and
    values at observations are not read. Without bootstrap_values every row ended at its last action; a row
    that a time limit cut off did not, and wants the critic's value there, unless its reward judges it as it
    stands.
    Returns advantages and returns, [tokens] in the dtype of `values`, 0 at observations; in float64 inside.
    """
    after = values.new_zeros(num_rows) if bootstrap_values is None else bootstrap_values
    parts = [
        _gae(
            token_level_rewards[tokens], values[tokens], row[tokens] - rows.start, mask[tokens], after[rows], gamma, lam
        )
        for rows, tokens in row_chunks(segment_count(row, num_rows), len(row))
    ]
    if not parts:
        return values.clone(), values.clone()
    advantages, returns = (torch.cat(column) for column in zip(*parts, strict=True))
    return advantages, returns


def _gae(
    rewards: Tensor, values: Tensor, row: Tensor, mask: Tensor, after: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Advantages and returns of a few rows; `after` is the value of the state that follows each row."""
    at = action_positions(mask)
    action_row, action_values = row.index_select(0, at), values.index_select(0, at).double()
    next_values = torch.where(is_last(action_row), after.double().index_select(0, action_row), action_values.roll(-1))
    deltas = rewards.index_select(0, at).double() + gamma * next_values - action_values
    advantages = discounted_suffix_sum(deltas, segment_count(action_row, len(after)), gamma * lam)
    return (
        scatter_actions(advantages.to(values.dtype), at, len(row)),
        scatter_actions((advantages + action_values).to(values.dtype), at, len(row)),
    )


def last_action_values(values: Tensor, row: Tensor, mask: Tensor, truncated: Tensor) -> Tensor:
    """Bootstrap values for truncated rows from the states the critic has seen.

    V(after the last action) ≈ V(before the last action) where truncated, else 0

    Pardo et al. 2018, https://arxiv.org/abs/1712.00378 (time limits are not ends)
    values: [tokens]. row: int64 [tokens], ascending. mask: [tokens]. truncated: bool [rows]. Returns [rows].
    """
    at = action_positions(mask)
    last = at[is_last(row[at])]
    return values.new_zeros(len(truncated)).index_copy(0, row[last], values[last]) * truncated


@ADVANTAGES.register("GAE")
def gae_of_critic(samples: Samples, options: AdvantageSpec, reduce: Reduce) -> Advantages:
    """`gae`; a truncated row ends where it was cut, because its reward judges it as it stands."""
    advantages, returns = gae(
        samples.token_level_rewards,
        samples.columns["values"].double(),
        samples.row,
        samples.mask,
        num_rows=samples.num_rows,
        gamma=options.gamma,
        lam=options.lambda_,
    )
    return Advantages(advantages, returns)
