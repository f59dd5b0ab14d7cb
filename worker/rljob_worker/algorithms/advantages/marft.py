"""GAE along the turns of several agents that share a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .acting_order import order_of_acting
from .gae import gae
from .samples import ADVANTAGES, Advantages, Reduce, Samples

if TYPE_CHECKING:
    from rljob_api.v1alpha1.algorithm import AdvantageSpec


def marft_gae(
    token_level_rewards: Tensor,
    values: Tensor,
    row: Tensor,
    mask: Tensor,
    agent_ids: Tensor,
    turn_ids: Tensor,
    *,
    num_rows: int,
    gamma: float,
    lam: float,
) -> tuple[Tensor, Tensor]:
    """GAE chained through turns, the agents of a turn and the tokens of an agent.

    δ_t = r_t + γ · V_next(t) - V_t,   A_t = δ_t + γλ · A_next(t),   R_t = A_t + V_t
    next(t) is the agent's next token; after its last one the first token of the next agent of the turn; after
    the last agent's last one the first token of the next turn; after that the row ends

    MARFT https://arxiv.org/abs/2504.16129
    token_level_rewards, values: [tokens]. row: int64 [tokens], ascending. mask: [tokens], not 0 at actions.
    agent_ids, turn_ids: integers [tokens], ascending in the order of acting; the tokens of a row may lie in any
    order of turns and agents, those of one agent in one turn lie in theirs. An agent's reward is on its last token.
    Returns advantages and returns, [tokens] in the dtype of `values`, 0 at observations; in float64 inside.
    """
    order = order_of_acting(row, turn_ids, agent_ids)
    result = gae(
        token_level_rewards[order],
        values[order],
        row,
        mask[order],
        num_rows=num_rows,
        gamma=gamma,
        lam=lam,
    )
    advantages, returns = (torch.empty_like(column).index_copy(0, order, column) for column in result)
    return advantages, returns


@ADVANTAGES.register("MARFT")
def marft(samples: Samples, options: AdvantageSpec, reduce: Reduce) -> Advantages:
    """`marft_gae`; each agent's advantages are whitened apart."""
    agent_ids = samples.columns["agent_ids"].long()
    advantages, returns = marft_gae(
        samples.token_level_rewards,
        samples.columns["values"].double(),
        samples.row,
        samples.mask,
        agent_ids,
        samples.columns["turn_ids"].long(),
        num_rows=samples.num_rows,
        gamma=options.gamma,
        lam=options.lambda_,
    )
    return Advantages(advantages, returns, kinds=agent_ids)
