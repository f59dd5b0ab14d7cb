"""What losses are divided by: a row's share in the denominators of a micro-batch or mini-batch.

A trajectory counts once, however many rows it has: each row counts for its part of the trajectory's actions, so that
rows of one trajectory may lie in several micro-batches. A row that was drawn several times counts as often.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from .aggregation import Aggregation
from .masking import action_positions, row_of_token, tensor_of
from .segments import segment_count

if TYPE_CHECKING:
    from rljob_worker.batch import Batch

ROW_WEIGHTS = "row_weights"

TRAJECTORY_TOKENS = "trajectory_tokens"
"""Column, int64 [rows], of an update where trajectories may have several rows: actions of the whole trajectory."""


@dataclass(frozen=True)
class CountedRows:
    """Rows with their actions. row: int64 [actions], ascending. num_actions, lengths: int64 [rows]."""

    row: Tensor
    num_actions: Tensor
    lengths: Tensor
    """Actions of each row's whole trajectory."""
    weights: Tensor | None
    """[rows], whole numbers: how often each is there; None for once."""

    @staticmethod
    def of(row: Tensor, num_rows: int, columns: Mapping[str, Tensor]) -> CountedRows:
        """columns: `trajectory_tokens` where a row may be part of a trajectory, `row_weights` where rows are drawn."""
        num_actions = segment_count(row, num_rows)
        return CountedRows(row, num_actions, columns.get(TRAJECTORY_TOKENS, num_actions), columns.get(ROW_WEIGHTS))

    def count(self, aggregation: Aggregation) -> Tensor:
        """What these rows add to the denominator of an aggregation, a scalar."""
        units = aggregation.units(self.lengths)
        if self.lengths is not self.num_actions:
            units = units * self.num_actions.double() / self.lengths.clamp(min=1)
        return units.sum() if self.weights is None else (units * self.weights).sum()

    @property
    def num_trajectories(self) -> Tensor:
        """Those with an action, each counted once in all of its rows; a scalar."""
        return (self.num_actions.double() / self.lengths.clamp(min=1)).sum()


def count_actions(aggregation: Aggregation, batch: Batch, mask: str, reads: Collection[str]) -> float:
    """This rank's denominator of one mini-batch. batch: its rows. reads: columns that the objective reads."""
    row = row_of_token(batch[mask])[action_positions(tensor_of(batch[mask]))]
    columns = {name: tensor_of(batch[name]) for name in (TRAJECTORY_TOKENS, ROW_WEIGHTS) if name in reads}
    return float(CountedRows.of(row, len(batch), columns).count(aggregation))


def trajectory_tokens(mask: Tensor, trajectory: Tensor, of_row: Tensor) -> Tensor:
    """Actions of each row's whole trajectory.

    mask: [tokens], not 0 at actions. trajectory: int64 [tokens]. of_row: int64 [rows], the trajectory of each row.
    Returns int64 [rows].
    """
    num_trajectories = int(of_row[-1]) + 1 if len(of_row) else 0
    return segment_count(trajectory[mask.bool()], num_trajectories)[of_row]
