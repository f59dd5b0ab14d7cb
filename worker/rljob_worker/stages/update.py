"""UpdatePolicy and UpdateCritic: optimizer steps over the mini-batches of a step.

Of optimizer steps in a row that were not taken a few are bad luck, many are a job that no longer learns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat
from typing import Any

import numpy as np

from rljob_api.catalogue.columns import computes_full_kl
from rljob_api.planning.plan import StagePlan
from rljob_api.planning.weights.versions import is_warm_up, most_versions_behind, policy_version, warm_up_steps
from rljob_api.v1alpha1 import RLJobSpec
from rljob_api.vocabulary.keys import REFERENCE
from rljob_worker.algorithms.advantages.estimation import has_reward_kl
from rljob_worker.algorithms.denominators import ROW_WEIGHTS
from rljob_worker.algorithms.mismatch import ROLLOUT_LOG_PROBS, TOKEN_VERSIONS, TokenAges
from rljob_worker.algorithms.objectives import policy_objective
from rljob_worker.algorithms.preparation import (
    prepared,
    require_loss_columns,
    with_corrections,
    with_trajectory_columns,
)
from rljob_worker.algorithms.values.objective import value_objective
from rljob_worker.batch import Batch, Column
from rljob_worker.batch.minibatches import mini_batch_of
from rljob_worker.engines.protocols import Objective, ScoringEngine, TrainEngine
from rljob_worker.errors import BadData
from rljob_worker.metrics.scalars import Scalars, mean, merge_all
from rljob_worker.stages.advantage import kl_controller, updated
from rljob_worker.stages.agent_rows import AgentRows
from rljob_worker.stages.exchanged_pictures import SeesPictures
from rljob_worker.stages.row_filter import Filter
from rljob_worker.stages.stage import Resources, StageContext, StageResult


class UpdatePolicy:
    """`updateEpochs` passes over the step's mini-batches. Owns the controller of a KL penalty in the loss."""

    def __init__(self, stage: StagePlan, resources: Resources) -> None:
        self._spec = resources.plan.spec
        self._algorithm = self._spec.algorithm
        self._engine = resources.train_engines[stage.models[0]]
        reference = self._spec.beside(REFERENCE, stage.models[0])
        self._reference = resources.scoring_engines[reference] if computes_full_kl(self._spec) else None
        self._num_trajectories = self._spec.num_rows
        self._rows_per_agent = resources.plan.rows_per_trajectory // self._spec.num_agents
        self._agents = AgentRows(self._spec, stage.models[0])
        self._filter = Filter.before(stage, resources.plan)
        self._controller = kl_controller(resources)
        self._skipped = SkippedSteps(stage.models[0], self._spec.training.max_skipped_steps)
        self._sees_pictures = SeesPictures(self._spec, stage.models[0])

    def run(self, batch: Batch | None, context: StageContext) -> StageResult:
        assert batch is not None
        if is_warm_up(self._spec, context.step):
            return StageResult(batch.select([]), context.counted({"update/warmup_total": mean(1.0)}))
        require_loss_columns(batch, self._algorithm.loss)
        self._sees_pictures.check(batch, self._engine, context.reduce)
        batch = with_token_versions(batch, self._spec)
        kept = self._agents.of(batch if self._filter is None else self._filter.rows(batch))
        several = self._rows_per_agent  # what a policy has of a trajectory is a sequence of its own
        ages = token_ages(batch, self._spec, context.step)
        rows, mismatch = with_corrections(kept, self._algorithm, context.reduce, rows_per_trajectory=several, ages=ages)
        rows = with_trajectory_columns(rows, self._algorithm, several)
        parts = [
            prepared(part, self._algorithm, reduce=context.reduce, seed=context.seed, rows_per_trajectory=several)
            for part in self._agents.not_empty(mini_batches(rows, self._spec, context.step), self._filter, context)
        ]
        if not parts:
            return StageResult(batch.select([]), context.counted({"update/without_rows_total": mean(1.0)}))
        objective = policy_objective(
            self._algorithm,
            max_response_tokens=self._spec.rollout.max_response_tokens,
            has_old_log_probs="old_log_probs" in batch,
            kl_coefficient=self._controller.coefficient,
            made=set(parts[0].columns) - set(batch.columns),
        )
        # before the first optimizer step the weights are those of the old policy
        tells = ROLLOUT_LOG_PROBS in batch and "old_log_probs" not in batch
        objectives = chain([objective.reporting_mismatch(ages) if tells else objective], repeat(objective))
        updates = run_updates(self._engine, objectives, parts, self._algorithm.update_epochs, self._reference)
        result, self._skipped = watched(updates, self._skipped, context.step)
        metrics = result | mismatch
        if not has_reward_kl(self._algorithm):
            self._controller = updated(self._controller, metrics, self._num_trajectories, context.reduce)
            metrics["kl/coefficient"] = mean(self._controller.coefficient)
        return StageResult(batch.select([]), context.counted(metrics))

    def state(self) -> dict[str, Any]:
        return {**self._controller.state_dict(), **skipped_state(self._skipped)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._controller = self._controller.with_state(dict(state))
        self._skipped = with_skipped_state(self._skipped, state)


class UpdateCritic:
    """Passes over the batch that train the critic on its value loss."""

    def __init__(self, stage: StagePlan, resources: Resources) -> None:
        self._spec = resources.plan.spec
        self._engine = resources.train_engines[stage.models[0]]
        self._filter = Filter.before(stage, resources.plan)
        self._agents = AgentRows(self._spec, stage.models[0])
        self._skipped = SkippedSteps(stage.models[0], self._spec.training.max_skipped_steps)

    def run(self, batch: Batch | None, context: StageContext) -> StageResult:
        assert batch is not None
        objective = value_objective(self._spec.algorithm)
        kept = self._agents.of(batch if self._filter is None else self._filter.rows(batch))
        parts = self._agents.not_empty(mini_batches(kept, self._spec, context.step), self._filter, context)
        if not parts:
            return StageResult(batch.select([]), context.counted({"critic/update/without_rows_total": mean(1.0)}))
        updates = run_updates(self._engine, repeat(objective), parts, self._spec.algorithm.update_epochs)
        metrics, self._skipped = watched(updates, self._skipped, context.step)
        named = {critic_name(name): scalar for name, scalar in metrics.items()}
        return StageResult(batch.select([]), context.counted(named))

    def state(self) -> dict[str, Any]:
        return skipped_state(self._skipped)

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._skipped = with_skipped_state(self._skipped, state)


def with_token_versions(batch: Batch, spec: RLJobSpec) -> Batch:
    """Rows with a version for each token where generation may be ahead: that of the row, where no more has come."""
    if spec.rollout.max_staleness == 0 or TOKEN_VERSIONS in batch or "policy_version" not in batch:
        return batch
    mask = batch["response_mask"]
    versions = np.repeat(batch["policy_version"].values, mask.lengths)
    return batch.with_columns({TOKEN_VERSIONS: Column(versions, mask.offsets, "int64")})


def token_ages(batch: Batch, spec: RLJobSpec, step: int) -> TokenAges | None:
    """How old tokens are for the update of a step; None where generation is never ahead, or versions are no column.

    A surplus of dynamic sampling may be older than `rollout.maxStaleness`, and what is carried than metrics tell apart:
    one more age has all of that.
    """
    oldest = most_versions_behind(spec)
    if oldest == 0 or TOKEN_VERSIONS not in batch:
        return None
    return TokenAges(newest=policy_version(spec, step - 1), oldest=oldest + 1, first=warm_up_steps(spec))


def run_updates(
    engine: TrainEngine,
    objectives: Iterator[Objective],
    parts: Sequence[Batch],
    num_epochs: int,
    reference: ScoringEngine | None = None,
) -> Iterator[Scalars]:
    """One optimizer step per epoch and mini-batch, and what each says of itself. objectives: of the steps."""
    return (engine.update(part, next(objectives), reference=reference) for _ in range(num_epochs) for part in parts)


def mini_batches(batch: Batch, spec: RLJobSpec, step: int) -> list[Batch]:
    """This rank's rows of each mini-batch, possibly none, in an order that only the seed decides.

    Rows that PF-PPO's draw left out cost no forward pass.
    """
    if ROW_WEIGHTS in batch:
        batch = batch.take(np.flatnonzero(batch[ROW_WEIGHTS].values))
    number = spec.num_mini_batches
    if number == 1:
        return [batch]
    member = mini_batch_of(
        batch.group_ids, step=step, batch_size=spec.data.batch_size, num_mini_batches=number, seed=spec.seed
    )
    return [batch.take(np.flatnonzero(member == index)) for index in range(number)]


def critic_name(name: str) -> str:
    """A metric of the critic's update under a name that does not collide with the policy's; times add up."""
    if name.startswith(("time/", "value/", "loss/value")):
        return name
    return f"critic/{name}"


@dataclass(frozen=True, slots=True)
class SkippedSteps:
    """How many there were lately. Every rank counts alike, since a step is skipped on all of them."""

    model: str
    limit: int
    """`training.maxSkippedSteps`."""
    in_a_row: int = 0

    def after(self, update: Scalars, step: int) -> SkippedSteps:
        """After one update, with its metrics. Raises BadData at the limit."""
        if update["update/skipped_total"].sum == 0.0:
            return replace(self, in_a_row=0)
        if self.in_a_row + 1 < self.limit:
            return replace(self, in_a_row=self.in_a_row + 1)
        raise BadData(
            f"step {step}: {self.limit} optimizer steps of {self.model} in a row were skipped, since the norm of their "
            "gradients was not a finite number; the logs of workers name the parameters; lower the learning rate, set "
            "training.precision: Float32, or raise training.maxSkippedSteps"
        )


def watched(updates: Iterable[Scalars], skipped: SkippedSteps, step: int) -> tuple[Scalars, SkippedSteps]:
    """The metrics of all updates of a step, and the count after them. Raises BadData as soon as it is at its limit."""
    result = []
    for update in updates:
        result.append(update)
        skipped = skipped.after(update, step)
    return merge_all(result), skipped


def skipped_state(skipped: SkippedSteps) -> dict[str, Any]:
    """What a checkpoint keeps."""
    return {"skipped_steps": skipped.in_a_row}


def with_skipped_state(skipped: SkippedSteps, state: Mapping[str, Any]) -> SkippedSteps:
    """As it stood at a checkpoint."""
    return replace(skipped, in_a_row=int(state.get("skipped_steps", 0)))
