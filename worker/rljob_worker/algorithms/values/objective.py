"""What an engine minimises on a critic.

    1/N_value · Σ L

N is counted once per optimizer step over all micro-batches and ranks, as in `objectives`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from rljob_worker.metrics import scalars
from rljob_worker.metrics.scalars import Scalar

from ..aggregation import TokenMean, aggregate
from ..denominators import ROW_WEIGHTS, CountedRows, count_actions
from ..masking import mask_column
from ..metric_accumulator import Measured, MetricAccumulator
from ..registry import resolve
from .losses import VALUE_LOSSES, ValueLoss, ValueTokenLosses

if TYPE_CHECKING:
    from rljob_api.v1alpha1.algorithm import AlgorithmSpec
    from rljob_worker.batch import Batch
    from rljob_worker.engines.protocols import TokenBatch


class ValueObjective:
    """The critic's loss of one mini-batch: a mean over action tokens, however the policy aggregates."""

    def __init__(
        self, loss: ValueLoss, clip_value: float | None, *, mask: str = "response_mask", is_weighted: bool = False
    ) -> None:
        self.columns: tuple[str, ...] = (mask, "values", "returns", *([ROW_WEIGHTS] if is_weighted else []))
        self.outputs: frozenset[str] = frozenset({"values"})
        self.mask = mask
        self._loss = loss
        self._clip_value = clip_value
        self._aggregation = TokenMean()

    def counts(self, batch: Batch) -> dict[str, float]:
        """This rank's denominator of one mini-batch. batch: its rows, with `columns`."""
        return {"value": count_actions(self._aggregation, batch, self.mask, self.columns)}

    def __call__(self, tokens: TokenBatch, counts: dict[str, float]) -> tuple[Tensor, Measured]:
        """Part of the objective, a scalar, and metrics, of which nothing is known to the host yet. tokens: whole rows.
        counts: over all ranks."""
        assert tokens.values is not None, "the engine was not asked for values"
        at = tokens.actions
        values, returns = tokens.values.index_select(0, at), tokens.columns["returns"].index_select(0, at)
        outcome = self._loss(values, tokens.columns["values"].index_select(0, at), returns, self._clip_value)
        rows, losses = CountedRows.of(tokens.row.index_select(0, at), tokens.num_rows, tokens.columns), outcome.losses
        if rows.weights is not None:
            losses = losses * rows.weights[rows.row]
        loss = aggregate(self._aggregation, losses, rows.row, rows.lengths, counts["value"])
        return loss, _value_metrics(values.detach(), returns, outcome)


def _value_metrics(values: Tensor, returns: Tensor, outcome: ValueTokenLosses) -> Measured:
    totals = MetricAccumulator()
    residuals = returns - values
    totals.mean_of("loss/value", outcome.losses)
    totals.mean_of("value/clip_fraction", outcome.clipped)
    totals.mean_of("value/residual", residuals)
    totals.mean_of("value/residual_square", residuals.double().square())
    totals.mean_of("value/return", returns)
    totals.mean_of("value/return_square", returns.double().square())
    return totals.measured()


def with_explained_variance(metrics: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Merged metrics with `value/explained_variance` added where a critic reported its moments.

    1 - Var[R - V] / Var[R]

    1 is a perfect critic, 0 one no better than a constant; left out where returns do not vary.
    metrics: merged over micro-batches and ranks; a ratio of variances cannot be merged, so it comes last.
    """
    if "value/return" not in metrics:
        return dict(metrics)
    unexplained = metrics["value/residual_square"].value - metrics["value/residual"].value ** 2
    variance = metrics["value/return_square"].value - metrics["value/return"].value ** 2
    if not variance > 0.0 or not math.isfinite(unexplained):
        return dict(metrics)
    return {**metrics, "value/explained_variance": scalars.mean(1.0 - unexplained / variance)}


def value_objective(algorithm: AlgorithmSpec) -> ValueObjective:
    """The critic's objective of a job that has one."""
    assert algorithm.critic is not None, f"{algorithm.name} has no critic"
    return ValueObjective(
        resolve(VALUE_LOSSES, "Clipped"),
        algorithm.critic.clip_value,
        mask=mask_column(algorithm),
        is_weighted=algorithm.sampling.resampling is not None,
    )
