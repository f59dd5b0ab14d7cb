"""Estimators of episodes count in decisions: all tokens of one are drawn from one state, and act together.

A decision is a row of its trajectory. The estimator sees the first action token of each, with the decision's reward and
the critic's value before it; what it gives is that of all action tokens of the decision.

    tokens of two decisions     a b | c d        rewards 0 1 | 0 2      values 5 6 | 7 8
    what the estimator sees     a     c                  1     2               5     7
    its returns                 3     2      become      3 3 | 2 2
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..masking import action_positions
from ..segments import segment_sum
from .samples import Advantages, Samples


def in_decisions(samples: Samples, decision: Tensor) -> Samples:
    """What an estimator sees. decision: int64 [tokens], ascending: the row of each. One without an action token is
    seen as little as it acts."""
    at = _first_actions(samples.mask, decision)
    mask = torch.zeros_like(samples.mask)
    mask[at] = True
    rewards = segment_sum(samples.token_level_rewards, decision, int(decision.max()) + 1 if len(decision) else 0)
    tokens = torch.zeros_like(samples.token_level_rewards).index_copy(0, at, rewards[decision[at]])
    return replace(samples, mask=mask, token_level_rewards=tokens)


def on_tokens(result: Advantages, mask: Tensor, decision: Tensor) -> Advantages:
    """What an estimator gave, on all action tokens of each decision. mask: bool [tokens], all actions."""
    at, actions = _first_actions(mask, decision), action_positions(mask)
    of_action = torch.searchsorted(decision[at], decision[actions])

    def spread(values: Tensor) -> Tensor:
        return torch.zeros_like(values).index_copy(0, actions, values[at][of_action])

    returns = None if result.returns is None else spread(result.returns)
    kinds = None if result.kinds is None else spread(result.kinds)
    return Advantages(spread(result.advantages), returns, kinds)


def _first_actions(mask: Tensor, decision: Tensor) -> Tensor:
    """Positions of the first action of every decision that has one, int64, ascending."""
    actions = action_positions(mask)
    first = torch.ones_like(actions, dtype=torch.bool)
    first[1:] = decision[actions][1:] != decision[actions][:-1]
    return actions[first]
