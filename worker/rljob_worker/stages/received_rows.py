"""Stages that the guests of an elastic group run, as the workers see them that get the rows: leases of this rank, put
together in the order of their draw numbers, whoever made them and in whatever order they came."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rljob_api.catalogue.columns import KEPT
from rljob_api.planning.plan import StagePlan
from rljob_worker.batch import Batch
from rljob_worker.batch.trajectories import Trajectories
from rljob_worker.metrics.report import report_from_bytes
from rljob_worker.metrics.scalars import Scalars, merge_all, total
from rljob_worker.stages.played.failed_trajectories import require_few_failed
from rljob_worker.stages.stage import Resources, StageContext, StageResult

if TYPE_CHECKING:
    from rljob_worker.databuffer.client import DeliveredRows

MAX_GUESTS = 64
"""Guests with a metric of their own."""


Deliveries = Callable[[str, int], "Iterator[DeliveredRows]"]
"""All leases of this rank of a stage and a step, in any order."""


class ReceivedLeases:
    """What guests made of this rank's part of a step, with the columns of all stages that they ran."""

    def __init__(self, deliveries: Deliveries) -> None:
        self._deliveries = deliveries
        self._last: tuple[str, int, StageResult] | None = None

    def rows(self, stage: str, step: int) -> StageResult:
        """stage: the one that reads prompts. The rows are kept until those of another step are asked for."""
        if self._last is None or self._last[:2] != (stage, step):
            self._last = None
            self._last = (stage, step, self._received(stage, step))
        return self._last[2]

    def _received(self, stage: str, step: int) -> StageResult:
        parts: dict[int, tuple[Batch, Scalars, list[dict[str, Any]]]] = {}
        for lease in self._deliveries(stage, step):
            report = report_from_bytes(lease.report)
            metrics = {_name_here(name): scalar for name, scalar in report.metrics.items()}
            metrics |= _tokens_of(lease.guest, metrics)
            parts[lease.index] = (copied(lease.batch), metrics, report.samples)
        batches, metrics_of, samples_of = zip(*(parts[index] for index in sorted(parts)), strict=True)
        samples = [sample for samples in samples_of for sample in samples]
        return StageResult(Batch.concat(list(batches)), merge_all(metrics_of, exactly=True), samples)


class ReceivedRows:
    """One stage of guests. What they measured is reported with the first of them, which also counts conversations that
    failed: no guest knows those of others."""

    def __init__(self, stage: StagePlan, resources: Resources) -> None:
        spec = resources.plan.spec
        self._counts_failed = spec.rollout.conversation is not None and not stage.after
        self._source = stage.after[0] if stage.after else stage.name
        self._is_first = not stage.after
        self._writes = frozenset(stage.writes)

    def run(self, batch: Batch | None, context: StageContext) -> StageResult:
        assert context.received is not None, "the plan has guests"
        result = context.received.rows(self._source, context.step)
        if self._counts_failed:
            self._require_few_failed(result, context)
        chosen = result.batch.select(name for name in result.batch.columns if name in self._writes)
        return replace(result, batch=chosen) if self._is_first else StageResult(chosen)

    def _require_few_failed(self, result: StageResult, context: StageContext) -> None:
        """Collective over the ranks that receive. Raises BadData where more trajectories failed than the job allows."""
        kept = Trajectories.of(result.batch.row_ids, context.job).ends(result.batch)[KEPT].values
        num_failed = context.reduce(torch.tensor([float(np.count_nonzero(kept == 0))], dtype=torch.float64))
        causes = failures_by_cause(result.metrics, context.job.num_rows)
        require_few_failed(context.job, context.step, int(num_failed.item()), context.job.num_rows, causes)


def failures_by_cause(metrics: Scalars, num_trajectories: int) -> Mapping[str, tuple[int, str]]:
    """How many conversations failed by cause, of what guests measured. num_trajectories: of a step."""
    prefix = "conversation/failed_fraction/"
    counts = {
        name.removeprefix(prefix): round(scalar.value * num_trajectories)
        for name, scalar in metrics.items()
        if name.startswith(prefix)
    }
    return {cause: (count, "described in the logs of generators") for cause, count in counts.items() if count}


def copied(batch: Batch) -> Batch:
    """A batch in memory of its own."""
    columns = {
        name: replace(
            column, values=column.values.copy(), offsets=None if column.offsets is None else column.offsets.copy()
        )
        for name, column in batch.columns.items()
    }
    index = (batch.row_ids.copy(), batch.group_ids.copy(), batch.num_tokens.copy())
    return Batch(*index, columns)


def _name_here(name: str) -> str:
    """Seconds of guests are not those of the worker that reports them."""
    return f"generators/{name.removeprefix('time/')}" if name.startswith("time/") else name


def _tokens_of(guest: str, metrics: Scalars) -> Scalars:
    """Tokens that a guest drew."""
    host = guest.partition("/")[0]
    number = int(host.rpartition("-")[2])
    if number >= MAX_GUESTS or "tokens/response_total" not in metrics:
        return {}
    return {f"generators/tokens/{host}": total(metrics["tokens/response_total"].sum)}
