"""Micro-batches of one optimizer step, and what an objective makes of what came out of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np
import torch

from rljob_worker.algorithms.metric_accumulator import Measured
from rljob_worker.batch import Batch
from rljob_worker.engines.fsdp.outputs import Outputs
from rljob_worker.engines.fsdp.pipeline import MicroBatchPipeline
from rljob_worker.engines.micro_batch import MicroBatch, response_columns
from rljob_worker.engines.protocols import Objective, TokenBatch


@dataclass(slots=True)
class StepMicroBatch:
    """One micro-batch, on its way and afterwards."""

    rows: MicroBatch | None
    """Until the backward pass is made."""
    indices: np.ndarray | None
    """Indices of the rows in the batch; None for a placeholder."""
    end: torch.Tensor | None
    """What the backward pass begins with: a loss, or what the next stage got. Until it is made."""
    outputs: Outputs | None = None
    """Where they are known, which is on the last stage."""
    loss: torch.Tensor | None = None
    metrics: Measured = field(default_factory=Measured)
    row: torch.Tensor = field(init=False)
    """[responses]: see `TokenBatch`."""

    def __post_init__(self) -> None:
        assert self.rows is not None
        self.row = self.rows.row

    def judge(self, batch: Batch, objective: Objective, counts: dict[str, float]) -> torch.Tensor:
        """The loss, from the outputs, which are only numbers then."""
        assert self.outputs is not None and self.indices is not None
        outputs = self.outputs
        columns, actions = response_columns(
            batch, objective.columns, self.indices, like=outputs.log_probs, mask=objective.mask
        )
        tokens = TokenBatch(
            outputs.log_probs,
            outputs.entropy,
            outputs.values,
            self.row,
            len(self.indices),
            columns,
            actions,
            outputs.full_kl,
        )
        loss, self.metrics = objective(tokens, counts)
        self.loss, self.outputs = loss.detach(), outputs.detach()
        return loss

    def backward(self, pipeline: MicroBatchPipeline) -> None:
        assert self.end is not None and self.rows is not None, "a second backward pass"
        pipeline.backward(self.end, self.rows)
        self.end = self.rows = None
        if pipeline.size == 1:
            self.outputs = None


def total_loss(runs: Sequence[StepMicroBatch]) -> float:
    losses = [run.loss for run in runs if run.loss is not None]
    return float(torch.stack(losses).sum()) if losses else 0.0


def broadcast_outputs(
    runs: Sequence[StepMicroBatch], kinds: Sequence[str], dtype: torch.dtype, pipeline: MicroBatchPipeline
) -> None:
    """What came out of the last stage, to the others: the outputs of these kinds, which are of this dtype."""
    known = [run for run in runs if run.indices is not None]
    sizes = [run.row.numel() for run in known]
    if pipeline.size == 1 or not sum(sizes):
        return
    values = torch.empty(len(kinds), sum(sizes), dtype=dtype, device=known[0].row.device)
    if pipeline.is_last:
        torch.cat([torch.stack([getattr(run.outputs, kind) for kind in kinds]) for run in known], 1, out=values)
    for run, part in zip(known, pipeline.from_last(values).split(sizes, dim=1), strict=True):
        run.outputs = Outputs(**dict(zip(kinds, part, strict=True)))


def output_kinds(names: frozenset[str], *, is_critic: bool) -> list[str]:
    """Which `Outputs` there are where an `Objective` asks for these."""
    has_entropy = not is_critic and not names.isdisjoint({"entropy", "entropy_figure"})
    there = {"log_probs": True, "entropy": has_entropy, "values": is_critic, "full_kl": "full_kl" in names}
    return [item.name for item in fields(Outputs) if there[item.name]]
