"""Which tokens are actions, and taking the others out.

Losses, estimators and aggregations only ever see action tokens: an observation token or a masked row cannot
reach a sum, a count, a maximum or a gradient, whatever its log-prob is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from rljob_api.v1alpha1.algorithm import AlgorithmSpec
    from rljob_worker.batch import Column
    from rljob_worker.batch.trajectories import Trajectories


LOSS_MASK = "loss_mask"


def mask_column(algorithm: AlgorithmSpec) -> str:
    """The tokens that enter the loss: all actions, or those of rows that were not cut off."""
    return LOSS_MASK if algorithm.mask_truncated else "response_mask"


def action_positions(mask: Tensor) -> Tensor:
    """Positions of the action tokens, in host memory: the host would wait for a device.

    mask: [tokens], not 0 where the policy chose the token. Returns int64 [actions], ascending.
    """
    return mask.bool().nonzero().squeeze(1)


def scatter_actions(values: Tensor, positions: Tensor, num_tokens: int) -> Tensor:
    """Action values back among all tokens, 0 at the others.

    values: [actions]. positions: int64 [actions]. Returns [num_tokens].
    """
    return values.new_zeros(num_tokens).index_copy(0, positions, values)


def tensor_of(column: Column) -> Tensor:
    """A copy of a column's values as a tensor: [rows] fixed, [tokens] ragged."""
    # a copy, because the values may be read-only views of shared memory
    values = torch.tensor(column.values)
    return values.view(torch.bfloat16) if column.dtype == "bfloat16" else values


def row_of_token(column: Column) -> Tensor:
    """The row each value of a ragged column belongs to, int64 [tokens], ascending."""
    lengths = torch.tensor(column.lengths)
    return torch.repeat_interleave(torch.arange(len(lengths)), lengths)


def trajectory_of(column: Column, trajectories: Trajectories) -> Tensor:
    """The trajectory each value of a ragged column belongs to, int64 [tokens], ascending."""
    return torch.repeat_interleave(torch.tensor(trajectories.of_row), torch.tensor(column.lengths))
