"""Response tokens in the order in which the agents of a trajectory acted: turn, then agent, then token.

Agents of a team have rows of their own, whose numbers do not say who acted when. What looks at the tokens of a whole
trajectory, such as GAE, sees them in this order; what it gives goes back to where the tokens lie.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..masking import tensor_of, trajectory_of
from .samples import Advantages

if TYPE_CHECKING:
    from rljob_worker.batch import Batch, Column
    from rljob_worker.batch.trajectories import Trajectories


def order_of_acting(row: Tensor, turn_ids: Tensor, agent_ids: Tensor) -> Tensor:
    """Positions of tokens by row, turn, agent and position, int64 [tokens].

    row, turn_ids, agent_ids: integers [tokens], in any order.
    """
    order = torch.argsort(agent_ids, stable=True)  # stable sorts by the last key first
    order = order[torch.argsort(turn_ids[order], stable=True)]
    return order[torch.argsort(row[order], stable=True)]


@dataclass(frozen=True)
class OrderedTokens:
    """The response tokens of a batch, packed: trajectory by trajectory, and in one in some order."""

    trajectories: Trajectories
    row: Tensor  # int64 [tokens]: the trajectory of each, ascending
    order: Tensor | None  # int64 [tokens]: where each lies in the batch; None: as they lie

    @staticmethod
    def as_they_lie(batch: Batch, trajectories: Trajectories) -> OrderedTokens:
        """In the order of rows and tokens."""
        return OrderedTokens(trajectories, trajectory_of(batch["response_mask"], trajectories), None)

    @staticmethod
    def as_acted(batch: Batch, trajectories: Trajectories) -> OrderedTokens:
        """In the order of acting. batch: with `turn_ids`, where there are several agents."""
        if trajectories.num_agents == 1:
            return OrderedTokens.as_they_lie(batch, trajectories)
        row = trajectory_of(batch["response_mask"], trajectories)
        agent = agent_of_token(batch["response_mask"], trajectories)
        return OrderedTokens(trajectories, row, order_of_acting(row, tensor_of(batch["turn_ids"]).long(), agent))

    def take(self, values: Tensor) -> Tensor:
        """Values of tokens as they lie in the batch, in this order: [tokens]."""
        return values if self.order is None else values[self.order]

    def restored(self, values: Tensor) -> Tensor:
        """Values of tokens in this order, as they lie in the batch: [tokens]."""
        return values if self.order is None else torch.empty_like(values).index_copy(0, self.order, values)

    def restore(self, result: Advantages) -> Advantages:
        """Advantages of tokens in this order, as they lie in the batch."""
        returns = None if result.returns is None else self.restored(result.returns)
        kinds = None if result.kinds is None else self.restored(result.kinds)
        return Advantages(self.restored(result.advantages), returns, kinds)


def agent_of_token(column: Column, trajectories: Trajectories) -> Tensor:
    """The agent that each value of a ragged column belongs to, by its place in the job: int64 [tokens]."""
    return torch.repeat_interleave(torch.tensor(trajectories.agent_of_row), torch.tensor(column.lengths))
