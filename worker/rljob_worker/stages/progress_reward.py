"""ProgressReward: SRPO's rewards of the episodes of a step, by their videos.

Each rank has its own episodes, and a task's successes may lie on any of them: what is compared is gathered on every
rank, in the order of trajectories, so that any number of ranks comes to the same rewards."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from rljob_api.catalogue.columns import PROGRESS_REWARDS, SUCCESS, TASK_ID, VIDEO_EMBEDDING
from rljob_api.planning.plan import StagePlan
from rljob_worker.algorithms.progress_rewards import ProgressRewards, progress_rewards
from rljob_worker.batch import Batch, Column
from rljob_worker.errors import InvalidJob
from rljob_worker.metrics.scalars import Scalars, mean, mean_of
from rljob_worker.stages.row_filter import Filter
from rljob_worker.stages.stage import Resources, StageContext, StageResult
from rljob_worker.trajectories import Trajectories

Float64 = NDArray[np.float64]


class ProgressReward:
    """Episodes that failed otherwise than by the policy are compared with none, and have reward 0."""

    def __init__(self, stage: StagePlan, resources: Resources) -> None:
        options = resources.plan.spec.algorithm.progress
        assert options is not None, "the plan was checked"
        self._options, self._filter = options, Filter.before(stage, resources.plan)
        self._rows_per_trajectory = resources.plan.rows_per_trajectory

    def run(self, batch: Batch | None, context: StageContext) -> StageResult:
        assert batch is not None
        trajectories = Trajectories(batch.row_ids, self._rows_per_trajectory)
        kept = np.arange(len(trajectories))
        if self._filter is not None:
            kept = np.flatnonzero(self._filter.flags(batch)[trajectories.last])
        episodes = _episodes(trajectories.ends(batch).take(kept), self._rows_per_trajectory)
        everywhere = _gathered(episodes, context)
        result = progress_rewards(
            everywhere.tasks, everywhere.success, everywhere.embeddings, everywhere.has_embedding, self._options
        )
        here = np.searchsorted(everywhere.ids, episodes.ids)
        rewards = np.zeros(len(trajectories))
        rewards[kept] = result.rewards[here]
        columns = {PROGRESS_REWARDS: Column.fixed(trajectories.on_rows(rewards))}
        return StageResult(batch.select([]).with_columns(columns), context.counted(_metrics(result, here)))


@dataclass(frozen=True, slots=True, eq=False)
class _Episodes:
    """What is compared of episodes."""

    ids: NDArray[np.int64]
    """[episodes]: their trajectories."""
    tasks: NDArray[np.int64]
    success: NDArray[np.bool_]
    embeddings: Float64
    """[episodes, dimensions]; zeros where there is none."""
    has_embedding: NDArray[np.bool_]


def _episodes(ends: Batch, rows_per_trajectory: int) -> _Episodes:
    """ends: the last row of each."""
    embeddings = ends[VIDEO_EMBEDDING]
    has_embedding = embeddings.lengths > 0
    dimensions = int(embeddings.lengths.max(initial=0))
    values = np.zeros((len(ends), dimensions))
    values[has_embedding] = np.asarray(embeddings.values, np.float64).reshape(-1, dimensions or 1)
    success = np.asarray(ends[SUCCESS].values != 0)
    ids = ends.row_ids // rows_per_trajectory
    return _Episodes(ids, np.asarray(ends[TASK_ID].values), success, values, has_embedding)


def _gathered(episodes: _Episodes, context: StageContext) -> _Episodes:
    """Those of all ranks, in the order of their trajectories. Every rank calls it alike: first how many each rank has
    and of how many dimensions, then a table [episodes, 4 + dimensions] in which each has filled its own rows."""
    sizes = torch.zeros(context.dp_size, 2, dtype=torch.float64)
    sizes[context.dp_rank] = torch.tensor([len(episodes.ids), episodes.embeddings.shape[1]])
    numbers, dimensions = context.reduce(sizes).long().T.numpy()
    if len(different := set(dimensions.tolist()) - {0}) > 1:
        raise InvalidJob(
            f"embeddings of videos have {' and '.join(map(str, sorted(different)))} dimensions; give all the same"
        )
    first, width = int(numbers[: context.dp_rank].sum()), int(dimensions.max())
    table = torch.zeros(int(numbers.sum()), 4 + width, dtype=torch.float64)
    mine = table[first : first + len(episodes.ids)].numpy()
    for place, column in enumerate((episodes.ids, episodes.tasks, episodes.success, episodes.has_embedding)):
        mine[:, place] = column
    mine[:, 4 : 4 + episodes.embeddings.shape[1]] = episodes.embeddings
    values = context.reduce(table).numpy()
    values = values[np.argsort(values[:, 0], kind="stable")]
    ids, tasks = values[:, 0].astype(np.int64), values[:, 1].astype(np.int64)
    return _Episodes(ids, tasks, values[:, 2] != 0, values[:, 4:], values[:, 3] != 0)


def _metrics(result: ProgressRewards, here: NDArray[np.int64]) -> Scalars:
    """Every rank says the same of tasks, and speaks of its own episodes."""
    distances = result.distances[here]
    compared = ~np.isnan(distances)
    return {
        "progress/reward_of_failures": mean_of(result.rewards[here][compared]),
        "progress/distance": mean_of(distances[compared]),
        "progress/compared_fraction": mean_of(compared),
        "progress/plain_tasks": mean(result.num_plain_tasks, result.num_tasks),
        "progress/unclustered_tasks": mean(result.num_unclustered_tasks, result.num_tasks),
        "progress/missing_fraction": mean(result.num_missing, len(result.rewards)),
    }
