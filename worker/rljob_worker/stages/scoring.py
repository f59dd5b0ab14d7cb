"""LogProbs and Values: a model's view of tokens that were already sampled."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np

from rljob_api.planning.plan import StagePlan
from rljob_api.v1alpha1 import RLJobSpec
from rljob_worker.batch import Batch, Column
from rljob_worker.engines.protocols import ScoringEngine
from rljob_worker.errors import BadData
from rljob_worker.finite import first_not_finite
from rljob_worker.metrics.scalars import mean, mean_of
from rljob_worker.stages.agent_rows import AgentRows
from rljob_worker.stages.stage import Resources, StageContext, StageResult


class LogProbs:
    """Log-probability of every response token under the stage's model, at the sampling temperature."""

    def __init__(self, stage: StagePlan, resources: Resources) -> None:
        self._stage, self._spec = stage, resources.plan.spec
        self._engines = {model: resources.scoring_engines[model] for model in stage.models}
        (self._column,) = stage.writes

    def run(self, batch: Batch | None, context: StageContext) -> StageResult:
        assert batch is not None
        started = time.perf_counter()
        log_probs = by_model(self._spec, self._engines, lambda engine, rows: engine.log_probs(rows), batch)
        metrics = {"time/forward_seconds": mean(time.perf_counter() - started)}
        require_finite(self._stage, "log-probability", log_probs, batch)
        return StageResult(batch.select([]).with_columns({self._column: log_probs}), metrics)


class Values:
    """The critic's value of the state before every response token."""

    def __init__(self, stage: StagePlan, resources: Resources) -> None:
        self._stage, self._spec = stage, resources.plan.spec
        self._engines = {model: resources.scoring_engines[model] for model in stage.models}
        (self._column,) = stage.writes

    def run(self, batch: Batch | None, context: StageContext) -> StageResult:
        assert batch is not None
        started = time.perf_counter()
        values = by_model(self._spec, self._engines, lambda engine, rows: engine.values(rows), batch)
        metrics = {"time/forward_seconds": mean(time.perf_counter() - started)}
        require_finite(self._stage, "value", values, batch)
        metrics |= {"value/mean": mean_of(values.values)}
        return StageResult(batch.select([]).with_columns({self._column: values}), context.counted(metrics))


def by_model(
    spec: RLJobSpec,
    engines: Mapping[str, ScoringEngine],
    score: Callable[[ScoringEngine, Batch], Column],
    batch: Batch,
) -> Column:
    """What models say of the tokens of their agents' rows, and 0 of other rows, which nobody reads."""
    agents = {model: AgentRows(spec, model) for model in engines}
    if len(engines) == 1 and all(mine.are_all for mine in agents.values()):
        return score(next(iter(engines.values())), batch)
    rows = {place: np.zeros(length, np.float32) for place, length in enumerate(batch["response_ids"].lengths)}
    dtype = "float32"
    for model, engine in engines.items():
        places = agents[model].places(batch)
        column = score(engine, batch.take(places))
        dtype = column.dtype
        rows |= dict(zip(places.tolist(), column.to_list(), strict=True))
    return Column.ragged(list(rows.values()), dtype)


def require_finite(stage: StagePlan, kind: str, scores: Column, batch: Batch) -> None:
    """Raises BadData for a score that is not a number, with the model and the token."""
    if result := first_not_finite(scores, batch.row_ids):
        where, score = result
        raise BadData(
            f"stage {stage.name}: model {stage.models[0]} gives {where} the {kind} {score}; look at its weights, set "
            "training.precision: Float32, or where it is in training go on from a checkpoint before that, with a lower "
            "training.learningRate"
        )
