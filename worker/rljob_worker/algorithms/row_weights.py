"""Denominators of a mini-batch in which a row counts as often as it was drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .aggregation import Aggregation
from .masking import action_positions, row_of, tensor_of
from .segments import segment_count

if TYPE_CHECKING:
    from rljob_worker.batch import Batch

ROW_WEIGHTS = "row_weights"


def count_actions(aggregation: Aggregation, batch: Batch, mask: str, *, is_weighted: bool) -> float:
    """This rank's denominator of one mini-batch. batch: its rows, with `mask` and `row_weights` if weighted."""
    row = row_of(batch[mask])[action_positions(tensor_of(batch[mask]))]
    weights = tensor_of(batch[ROW_WEIGHTS]) if is_weighted else None
    return float(count(aggregation, row, len(batch), weights))


def count(aggregation: Aggregation, row: Tensor, num_rows: int, weights: Tensor | None) -> Tensor:
    """The denominator of an aggregation with every row there as often as its weight says.

    row: int64 [tokens], ascending. weights: [rows], whole numbers; None for once each. Returns a scalar.
    """
    if weights is None:
        return aggregation.count(row, num_rows)
    lengths = torch.repeat_interleave(segment_count(row, num_rows), weights.long())
    repeated = torch.repeat_interleave(torch.arange(len(lengths), device=row.device), lengths)
    return aggregation.count(repeated, len(lengths))
