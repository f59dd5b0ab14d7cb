"""Advantage estimators on packed tokens, and whitening over the whole batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .masking import action_positions, scatter_actions
from .segments import discounted_suffix_sum, is_last, row_chunks, segment_count, segment_max, segment_mean, segment_sum

Reduce = Callable[[Tensor], Tensor]
"""Sums a float64 tensor over the data-parallel ranks. Collective: a rank without rows calls it too."""


def no_reduce(local: Tensor) -> Tensor:
    """The sum over ranks when there is one."""
    return local


def grpo_advantages(rewards: Tensor, group_ids: Tensor, *, normalize_std: bool = True, epsilon: float = 1e-6) -> Tensor:
    """How much better a row is than the other rows of its prompt.

    A_i = (r_i - mean_g) / (std_g + epsilon), std with Bessel's correction
    A_i = r_i - mean_g without normalize_std

    GRPO https://arxiv.org/abs/2402.03300, Dr. GRPO https://arxiv.org/abs/2503.20783
    rewards: [rows]. group_ids: int64 [rows], any values in any order; groups may differ in size.
    A group of one has nothing to compare with, one of equal rewards no difference: they get exactly 0.
    Returns [rows] in the dtype of `rewards`; computed in float64.
    """
    spread, centred, group = _group_statistics(rewards.double(), group_ids)
    num_groups = len(spread)
    if normalize_std:
        freedom = (segment_count(group, num_groups) - 1).clamp(min=1)
        std = (segment_sum(centred.square(), group, num_groups) / freedom).sqrt()
        centred = centred / (std + epsilon)[group]
    # equal rewards may miss their own mean by a rounding error, which the division by epsilon would blow up
    return torch.where(spread[group] > 0.0, centred, 0.0).to(rewards.dtype)


def group_spread(rewards: Tensor, group_ids: Tensor) -> Tensor:
    """Largest minus smallest reward of each group; 0 tells nothing to GRPO.

    max_g r - min_g r

    DAPO section 3.2, https://arxiv.org/abs/2503.14476 (such groups are resampled there)
    rewards: [rows]. group_ids: int64 [rows]. Returns float64 [groups], by ascending group id.
    """
    return _group_statistics(rewards.double(), group_ids)[0]


def _group_statistics(rewards: Tensor, group_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Spread [groups], rewards minus the mean of their group [rows], index of the group [rows]."""
    groups, group = torch.unique(group_ids, return_inverse=True)
    num_groups = len(groups)
    spread = segment_max(rewards, group, num_groups) + segment_max(-rewards, group, num_groups)
    return spread, rewards - segment_mean(rewards, group, num_groups)[group], group


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


def whiten(advantages: Tensor, mask: Tensor, reduce: Reduce = no_reduce, *, epsilon: float = 1e-8) -> Tensor:
    """Mean 0 and variance 1 over the action tokens of the whole batch.

    A ← (A - mean) / √(var + epsilon), var with Bessel's correction

    Andrychowicz et al. 2020, https://arxiv.org/abs/2006.05990
    advantages, mask: [tokens] of this rank. reduce: sums over ranks, called twice on every rank. Below two
    tokens over all ranks the variance is undefined and advantages stay as they are.
    Returns [tokens] in the dtype of `advantages`, 0 at observation tokens; computed in float64.
    """
    at = action_positions(mask)
    actions = advantages.index_select(0, at).double()
    count, total = reduce(torch.stack([actions.new_tensor(len(actions)), actions.sum()])).unbind()
    centred = actions - total / count.clamp(min=1.0)
    # a second pass over the deviations: squares of raw values would cancel
    squares = reduce(centred.square().sum())
    whitened = centred / (squares / (count - 1.0).clamp(min=1.0) + epsilon).sqrt()
    return scatter_actions(torch.where(count < 2.0, actions, whitened), at, len(mask)).to(advantages.dtype)
