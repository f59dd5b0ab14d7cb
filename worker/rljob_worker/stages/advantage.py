"""Advantage: turns the rewards of a group's trajectories into advantages per token (and returns for a critic).

Trajectories that a filter left out are compared with no other; their advantages are 0, and no update reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from rljob_api.planning.plan import StagePlan
from rljob_worker.algorithms.advantages.estimation import estimate_advantages, has_reward_kl
from rljob_worker.algorithms.advantages.overlong import mask_truncated
from rljob_worker.algorithms.kl import KLController
from rljob_worker.algorithms.masking import tensor_of, trajectory_of
from rljob_worker.batch import Batch, Column
from rljob_worker.batch.trajectories import Trajectories
from rljob_worker.errors import BadData
from rljob_worker.finite import first_not_finite
from rljob_worker.metrics.scalars import Scalars, mean
from rljob_worker.stages.row_filter import Filter, Flags
from rljob_worker.stages.stage import Reduce, Resources, StageContext, StageResult, token_column


class Advantage:
    """The algorithm's estimator. With the KL penalty in the reward it owns the penalty's controller."""

    def __init__(self, stage: StagePlan, resources: Resources) -> None:
        spec = resources.plan.spec
        self._spec, self._algorithm = spec, spec.algorithm
        self._filter = Filter.before(stage, resources.plan)
        self._max_response_tokens = spec.rollout.max_response_tokens
        self._num_trajectories = spec.num_rows
        self._rows_per_trajectory = resources.plan.rows_per_trajectory
        self._name, self._writes = stage.name, stage.writes
        self._controller = kl_controller(resources)

    def run(self, batch: Batch | None, context: StageContext) -> StageResult:
        assert batch is not None
        trajectories = Trajectories(batch.row_ids, self._rows_per_trajectory, self._spec.num_agents)
        trajectories.require_of_groups(batch.group_ids, self._algorithm.group_size)
        kept = None
        if self._filter is not None:
            self._filter.require_whole_groups(batch, self._spec)
            kept = self._filter.flags(batch)
        rows = batch if kept is None else batch.take(np.flatnonzero(kept))
        self._require_finite_rewards(rows)
        result, metrics = estimate_advantages(
            rows,
            self._algorithm,
            max_response_tokens=self._max_response_tokens,
            kl_coefficient=self._controller.coefficient,
            rows_per_trajectory=self._rows_per_trajectory,
            num_agents=self._spec.num_agents,
            rewards_agents=self._spec.rewards_agents,
            rows_are_decisions=self._spec.rollout.simulator is not None,
            reduce=context.reduce,
        )
        mask = batch["response_mask"]
        columns = {"advantages": as_token_column(result.advantages, mask, kept)}
        if result.returns is not None:
            columns["returns"] = as_token_column(result.returns, mask, kept)
        if "loss_mask" in self._writes:
            columns["loss_mask"] = loss_mask(batch, trajectories)
        if has_reward_kl(self._algorithm):
            metrics |= {"kl/coefficient": mean(self._controller.coefficient)}
            self._controller = updated(self._controller, metrics, self._num_trajectories, context.reduce)
        return StageResult(batch.select([]).with_columns(columns), metrics)

    def _require_finite_rewards(self, rows: Batch) -> None:
        if result := first_not_finite(rows["rewards"], rows.row_ids):
            where, reward = result
            raise BadData(
                f"stage {self._name}: the reward of {where} is {reward}, and rewards are finite numbers; look at what "
                "wrote the column rewards"
            )

    def state(self) -> dict[str, Any]:
        return self._controller.state_dict()

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._controller = self._controller.with_state(dict(state))


def as_token_column(values: torch.Tensor, like: Column, kept: Flags | None) -> Column:
    """A column with one value per token of `like`, from values of the kept rows' tokens; 0 in the other rows."""
    if kept is None:
        return token_column(values.numpy(), like)
    everywhere = np.zeros(int(like.lengths.sum()), values.numpy().dtype)
    everywhere[np.repeat(kept, like.lengths)] = values.numpy()
    return token_column(everywhere, like)


def loss_mask(batch: Batch, trajectories: Trajectories) -> Column:
    """The response mask without the trajectories of which a row was cut off."""
    mask, truncated = batch["response_mask"], trajectories.any_row(batch["truncated"].values)
    kept = mask_truncated(tensor_of(mask).bool(), torch.tensor(truncated), trajectory_of(mask, trajectories))
    return token_column(kept.to(torch.uint8).numpy(), mask)


def kl_controller(resources: Resources) -> KLController:
    """The controller of the job's KL penalty as it begins."""
    kl = resources.plan.spec.algorithm.kl
    return KLController(kl.coefficient, kl.target, float(kl.horizon))


def updated(controller: KLController, metrics: Scalars, num_trajectories: int, reduce: Reduce) -> KLController:
    """The controller after a step; every rank comes to the same coefficient. A fixed one needs no collective."""
    seen = metrics.get("kl/reference_row")
    if controller.target is None:
        return controller
    mine = torch.tensor([seen.sum, seen.count] if seen is not None else [0.0, 0.0], dtype=torch.float64)
    total, count = reduce(mine).tolist()
    return controller.update(total / count, num_trajectories) if count else controller
