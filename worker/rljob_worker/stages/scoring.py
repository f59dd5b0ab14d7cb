"""LogProbs and Values: a model's view of tokens that were already sampled."""

from __future__ import annotations

import time

from rljob_api.planning.plan import StagePlan
from rljob_worker.batch import Batch
from rljob_worker.scalars import mean, mean_of
from rljob_worker.stages.stage import Resources, StageContext, StageResult


class LogProbs:
    """Log-probability of every response token under the stage's model, at the sampling temperature."""

    def __init__(self, stage: StagePlan, resources: Resources) -> None:
        self._engine = resources.train_engines[stage.models[0]]
        (self._column,) = stage.writes

    def run(self, batch: Batch | None, context: StageContext) -> StageResult:
        assert batch is not None
        started = time.perf_counter()
        log_probs = self._engine.log_probs(batch)
        metrics = {"time/forward_seconds": mean(time.perf_counter() - started)}
        return StageResult(batch.select([]).with_columns({self._column: log_probs}), metrics)


class Values:
    """The critic's value of the state before every response token."""

    def __init__(self, stage: StagePlan, resources: Resources) -> None:
        self._engine = resources.train_engines[stage.models[0]]
        (self._column,) = stage.writes

    def run(self, batch: Batch | None, context: StageContext) -> StageResult:
        assert batch is not None
        started = time.perf_counter()
        values = self._engine.values(batch)
        metrics = {"time/forward_seconds": mean(time.perf_counter() - started)}
        metrics |= {"value/mean": mean_of(values.values)}
        return StageResult(batch.select([]).with_columns({self._column: values}), context.counted(metrics))
