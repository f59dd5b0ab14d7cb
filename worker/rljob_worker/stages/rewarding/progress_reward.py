"""ProgressReward: SRPO's rewards of the episodes of a step, by their videos.

Each rank has its own episodes, and a task's successes may lie on any of them. What is compared of a task goes to one
rank, whichever the task's number says, which puts its episodes in the order of trajectories, so that any number of
ranks comes to the same rewards; these go back to where the episodes are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from rljob_api.catalogue.columns import PROGRESS_REWARDS, SUCCESS, TASK_ID, VIDEO_EMBEDDING
from rljob_api.planning.plan import StagePlan
from rljob_api.v1alpha1.algorithm import ProgressSpec
from rljob_worker.algorithms.progress_rewards import ProgressRewards, progress_rewards
from rljob_worker.batch import Batch, Column
from rljob_worker.batch.trajectories import Trajectories
from rljob_worker.errors import InvalidJob
from rljob_worker.metrics.scalars import Scalars, mean, mean_of
from rljob_worker.stages.row_filter import Filter
from rljob_worker.stages.stage import Resources, StageContext, StageResult

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
        dimensions = _dimensions(episodes, context)

        def compared() -> tuple[Float64, ProgressRewards]:
            return _compared(episodes, dimensions, context, self._options)

        (values, distances), here = context.copy.from_leader((2, len(kept)), compared)
        rewards = np.zeros(len(trajectories))
        rewards[kept] = values
        columns = {PROGRESS_REWARDS: Column.fixed(trajectories.on_rows(rewards))}
        metrics = {} if here is None else _metrics(values, distances, here)
        return StageResult(batch.select([]).with_columns(columns), metrics)


@dataclass(frozen=True, slots=True, eq=False)
class _Episodes:
    """What is compared of episodes."""

    facts: NDArray[np.int64]
    """[episodes, 4]: trajectory, task, whether it succeeded, whether it has an embedding."""
    embeddings: NDArray[np.float32]
    """[episodes, dimensions]; zeros where there is none."""


def _episodes(ends: Batch, rows_per_trajectory: int) -> _Episodes:
    """ends: the last row of each."""
    embeddings = ends[VIDEO_EMBEDDING]
    has_embedding = embeddings.lengths > 0
    dimensions = int(embeddings.lengths.max(initial=0))
    values = np.zeros((len(ends), dimensions), np.float32)
    values[has_embedding] = embeddings.values.reshape(-1, dimensions or 1)
    ids, tasks, success = ends.row_ids // rows_per_trajectory, ends[TASK_ID].values, ends[SUCCESS].values != 0
    return _Episodes(np.stack([ids, tasks, success, has_embedding], axis=1).astype(np.int64), values)


def _dimensions(episodes: _Episodes, context: StageContext) -> int:
    """Dimensions of all embeddings; 0 where no rank has any. Raises InvalidJob on every rank where they differ."""
    sizes = torch.zeros(context.dp_size, dtype=torch.float64)
    sizes[context.dp_rank] = episodes.embeddings.shape[1]
    dimensions = sorted(set(context.reduce(sizes).long().tolist()) - {0})
    if len(dimensions) > 1:
        raise InvalidJob(
            f"embeddings of videos have {' and '.join(map(str, dimensions))} dimensions; give all the same"
        )
    return dimensions[0] if dimensions else 0


def _compared(
    episodes: _Episodes, dimensions: int, context: StageContext, options: ProgressSpec
) -> tuple[Float64, ProgressRewards]:
    """Rewards and distances [2, episodes] of this rank's episodes; and of all episodes of the tasks that are compared
    here. Leaders call it alike."""
    owner = episodes.facts[:, 1] % context.dp_size
    places = [np.flatnonzero(owner == rank) for rank in range(context.dp_size)]
    embeddings = np.zeros((len(owner), max(1, dimensions)), np.float32)
    embeddings[:, : episodes.embeddings.shape[1]] = episodes.embeddings
    facts = context.exchange([torch.from_numpy(episodes.facts[at]) for at in places])
    numbers = torch.cat(context.exchange([torch.from_numpy(embeddings[at]) for at in places])).numpy()
    ids, tasks, success, has_embedding = torch.cat(facts).numpy().T
    order = np.argsort(ids)
    result = progress_rewards(tasks[order], success[order] != 0, numbers[order], has_embedding[order] != 0, options)
    answers = torch.zeros(len(ids), 2, dtype=torch.float64)
    answers[torch.from_numpy(order)] = torch.from_numpy(np.stack([result.rewards, result.distances], axis=1))
    returned = context.exchange(list(answers.split([len(part) for part in facts])))
    values = np.zeros((2, len(owner)))
    values[:, np.concatenate(places)] = torch.cat(returned).numpy().T
    return values, result


def _metrics(rewards: Float64, distances: Float64, here: ProgressRewards) -> Scalars:
    """Figures of this rank's episodes [episodes], and of the tasks that are compared on it."""
    compared = ~np.isnan(distances)
    return {
        "progress/reward_of_failures": mean_of(rewards[compared]),
        "progress/distance": mean_of(distances[compared]),
        "progress/compared_fraction": mean_of(compared),
        "progress/plain_tasks": mean(here.num_plain_tasks, here.num_tasks),
        "progress/unclustered_tasks": mean(here.num_unclustered_tasks, here.num_tasks),
        "progress/missing_fraction": mean(here.num_missing, len(here.rewards)),
    }
