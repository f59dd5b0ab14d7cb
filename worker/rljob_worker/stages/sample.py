"""Sample: rollout and reward in rounds, until the step has a full batch of groups that teach something.

DAPO's dynamic sampling (https://arxiv.org/abs/2503.14476) inside one stage. What else needs rollout and reward together
is here too: ReMax's greedy baseline and PF-PPO's resampling.

Prompts are drawn by number, and their randomness goes with the draw number. A group that is accepted gets a place in
the batch: step s has the groups [(s - 1) * batchSize, s * batchSize) whatever was rejected, so that everything after
this stage, mini-batches above all, is as it is without it. Who draws what is a `DrawAssignment`. Rows leave on the rank
that drew them; the edges from here are routed by layout, which deals groups out evenly.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rljob_api.catalogue.stages import STAGES
from rljob_api.planning.plan import StagePlan
from rljob_api.planning.versions import is_warm_up
from rljob_worker.algorithms.resampling import row_weights
from rljob_worker.batch import Batch, Column
from rljob_worker.errors import BadData
from rljob_worker.metrics.scalars import Scalars, mean, mean_of, merge_all
from rljob_worker.stages.assembly import REJECTED, Assembly, Int64, Outcome, outcomes_of
from rljob_worker.stages.draw_assignment import draw_assignment_of
from rljob_worker.stages.reward import Reward, reward_metrics
from rljob_worker.stages.rollout import Rollout, staleness_metrics
from rljob_worker.stages.stage import Resources, StageContext, StageResult
from rljob_worker.trajectories import Trajectories


@dataclass(frozen=True, slots=True)
class _Drawn:
    """This rank's rows of some drawn groups, with rewards, and what became of each group."""

    numbers: Int64
    batch: Batch
    outcomes: Int64
    metrics: Scalars
    samples: list[dict[str, Any]]


class Sample:
    """Remembers the next draw number, and surplus groups while the policy that made them is the current one."""

    def __init__(self, stage: StagePlan, resources: Resources) -> None:
        self._spec = resources.plan.spec_of(stage.models[0])
        self._sampling = self._spec.algorithm.sampling
        self._group_size = self._spec.algorithm.group_size
        self._rollout, self._reward = Rollout(stage, resources), Reward(stage, resources)
        self._rows_per_trajectory = resources.plan.rows_per_trajectory
        self._rows_per_group = self._group_size * self._rows_per_trajectory
        self._reward_reads = STAGES["Reward"].columns(self._spec, (), False).reads
        self._writes = frozenset(stage.writes)
        self._oversampling = self._sampling.oversampling if self._sampling.dynamic else 1.0
        self._next_number: int | None = None
        self._carried: Int64 = np.empty(0, np.int64)
        """Draw numbers of the surplus, on any rank."""
        self._rows: list[Batch] = []
        """This rank's rows of it."""

    def run(self, batch: Batch | None, context: StageContext) -> StageResult:
        first = self._first_number(context.step)
        assembly = Assembly(self._spec.data.batch_size, first, self._carried)
        rounds, assignment = list[_Drawn](), draw_assignment_of(context)
        while assembly.num_missing:
            if assembly.num_rounds == self._sampling.max_rounds:
                raise BadData(assembly.explain(context.step))
            numbers = assembly.draw(self._oversampling)
            shares = assignment.shares(numbers, assembly.num_rounds)
            result = [self._draw(share, first, context) for share in shares]
            assembly = assembly.after(assignment.outcomes(known_outcomes(numbers, result), assembly.num_rounds))
            rounds += result
        held = self._held(rounds, first, context)
        metrics = sampling_metrics(assembly, num_before=len(self._carried))
        metrics |= self._keep_surplus(assembly, held, context.step)
        # the first round of the next step, read while this one trains
        coming = Assembly(assembly.batch_size, assembly.next_number, self._carried).draw(self._oversampling)
        self._rollout.read_ahead(assignment.likely(coming))
        first_group = (context.step - 1) * assembly.batch_size
        out = numbered(held, assembly.batch, first_group=first_group, rows_per_group=self._rows_per_group)
        if "row_weights" in self._writes:
            weights = self._row_weights(out, context)
            out = out.with_columns({"row_weights": Column.fixed(weights)})
            of_trajectories = weights[Trajectories(out.row_ids, self._rows_per_trajectory).first]
            metrics["sampling/rows_drawn_fraction"] = mean(int(np.count_nonzero(of_trajectories)), len(of_trajectories))
        metrics |= staleness_metrics(out, self._spec, context.step)
        drawn = (sample for result in rounds for sample in result.samples)
        samples = [renumbered(item, assembly.batch, first_group, self._rows_per_group) for item in drawn]
        metrics |= assignment.merged([result.metrics for result in rounds])
        out = out.select(name for name in out.columns if name in self._writes)
        return StageResult(out, context.counted(metrics), samples)

    # ---- one round

    def _draw(self, numbers: Int64, first: int, context: StageContext) -> _Drawn:
        """Responses and rewards of some prompts."""
        batch, metrics = self._rollout.draw(numbers, context)
        started = time.perf_counter()
        trajectories = Trajectories(batch.row_ids, self._rows_per_trajectory)
        ends = trajectories.ends(batch.select([*self._reward_reads, "truncated"]))
        scored = self._reward.score_for_copy(ends.select(self._reward_reads), context, first_group=first)
        metrics |= reward_metrics(scored.total, scored.correct, ends.values_of("source")) | scored.metrics
        metrics["time/reward_seconds"] = mean(time.perf_counter() - started)
        outcomes = self._outcomes(trajectories.any_row(batch["truncated"].values), scored.total, scored.correct)
        columns = {"rewards": Column.fixed(trajectories.on_rows(scored.total))}
        if "baseline_rewards" in self._writes:
            columns["baseline_rewards"], result = self._baseline(batch, context)
            metrics = merge_all([metrics, result])
        return _Drawn(numbers, batch.with_columns(columns), outcomes, metrics, scored.samples)

    def _outcomes(self, truncated: np.ndarray, rewards: np.ndarray, correct: np.ndarray) -> Int64:
        """The outcome of each group. All arguments are [trajectories]."""
        if not self._sampling.dynamic:
            return np.full(len(rewards) // self._group_size, Outcome.ACCEPTED, np.int64)
        shape = (-1, self._group_size)
        return outcomes_of(
            rewards.reshape(shape),
            correct.reshape(shape),
            truncated.reshape(shape),
            mask_truncated=self._spec.algorithm.mask_truncated,
        )

    def _baseline(self, batch: Batch, context: StageContext) -> tuple[Column, Scalars]:
        """The reward of the greedy response to each row's prompt; it is not a row of the batch, and in no other
        figure."""
        greedy, metrics = self._rollout.greedy(batch.select(self._reward_reads), context)
        total = self._reward.score_for_copy(greedy, context, first_group=0).total
        metrics["reward/baseline"] = mean_of(total)
        return Column.fixed(total[group_of_row(batch)]), metrics

    # ---- the end of a step

    def _held(self, rounds: Sequence[_Drawn], first: int, context: StageContext) -> Batch:
        """This rank's rows of all groups that were accepted, in the order of their draw numbers."""
        parts = [*self._rows, *(accepted_rows(result) for result in rounds)]
        # a rank that held nothing back and drew nothing still says which columns there are
        return Batch.concat(parts or [self._draw(np.empty(0, np.int64), first, context).batch])

    def _keep_surplus(self, assembly: Assembly, held: Batch, step: int) -> Scalars:
        """Hold back what is too much if the step leaves the policy as it is; or, where batches are off-policy anyway,
        what is of this step: it is used in the next one or not at all, and is one version older then."""
        surplus, is_old = assembly.surplus, np.isin(assembly.surplus, self._carried)
        self._next_number = assembly.next_number
        if not is_warm_up(self._spec, step):
            surplus = surplus[~is_old] if self._spec.rollout.max_staleness > 0 else surplus[:0]
        self._carried = surplus
        self._rows = [held.take(np.flatnonzero(np.isin(held.group_ids, self._carried)))]
        return {
            "sampling/groups_carried_on": mean(len(self._carried)),
            "sampling/groups_surplus": mean(len(assembly.surplus) - len(self._carried)),
        }

    def _row_weights(self, batch: Batch, context: StageContext) -> Int64:
        """How often PF-PPO's draw takes each row's trajectory; all ranks draw from the rewards of the whole batch."""
        assert self._sampling.resampling is not None
        num_trajectories = self._spec.num_rows
        number = batch.row_ids // self._rows_per_trajectory - (context.step - 1) * num_trajectories
        rewards = np.zeros(num_trajectories)
        rewards[number] = batch["rewards"].values
        everyones = context.reduce(torch.from_numpy(rewards))
        weights = row_weights(everyones, self._sampling.resampling, seed=context.seed, step=context.step)
        drawn: Int64 = weights.numpy()[number]
        return drawn

    def _first_number(self, step: int) -> int:
        """Where this step goes on; a run that had no Sample before has drawn a batch each step."""
        return (step - 1) * self._spec.data.batch_size if self._next_number is None else self._next_number

    # ---- between two steps

    def state(self) -> dict[str, Any]:
        return {"next_ordinal": self._next_number, "carried": self._carried.tolist()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._next_number = state["next_ordinal"]
        self._carried = np.array(state["carried"], np.int64)

    def rows(self) -> Batch | None:
        return self._rows[0] if len(self._carried) else None

    def load_rows(self, parts: Sequence[Batch]) -> None:
        self._rows = [with_versions(part) for part in parts]


def known_outcomes(numbers: Int64, result: Sequence[_Drawn]) -> Int64:
    """What became of the draw numbers of a round, as far as one rank drew them: [numbers], 0 for others."""
    known = np.zeros(len(numbers), np.int64)
    for item in result:
        known[item.numbers - numbers[0]] = item.outcomes
    return known


def accepted_rows(drawn: _Drawn) -> Batch:
    """The rows of the groups that were accepted."""
    return drawn.batch.take(np.flatnonzero((drawn.outcomes == Outcome.ACCEPTED)[group_of_row(drawn.batch)]))


def with_versions(batch: Batch) -> Batch:
    """Rows that may have been kept by a run which knew one version per row only."""
    if "token_versions" in batch:
        return batch
    response_ids = batch["response_ids"]
    versions = np.repeat(batch["policy_version"].values, response_ids.lengths)
    of_tokens = Column(versions, response_ids.offsets, "int64")
    return batch.with_columns({"last_policy_version": batch["policy_version"], "token_versions": of_tokens})


def group_of_row(batch: Batch) -> Int64:
    """Which of the batch's groups each row is of, counted from 0: [rows]."""
    of_row: Int64 = np.unique(batch.group_ids, return_inverse=True)[1]
    return of_row


def numbered(held: Batch, numbers: Int64, *, first_group: int, rows_per_group: int) -> Batch:
    """The rows of the batch's groups at their places: the i-th draw number is group `first_group` + i.

    rows_per_group: row numbers that a group has, whether or not that many are there.
    """
    batch = held.take(np.flatnonzero(np.isin(held.group_ids, numbers)))
    group_ids = first_group + np.searchsorted(numbers, batch.group_ids)
    row_ids = batch.row_ids + (group_ids - batch.group_ids) * rows_per_group
    return Batch(row_ids, group_ids, batch.num_tokens, batch.columns)


def renumbered(sample: Mapping[str, Any], numbers: Int64, first_group: int, rows_per_group: int) -> dict[str, Any]:
    """A sample of a drawn row at its place in the batch; `dropped` where its group is not there."""
    group, row = divmod(sample["row_id"], rows_per_group)
    place = int(np.searchsorted(numbers, group))
    if place == len(numbers) or numbers[place] != group:
        return {**sample, "dropped": True}
    return {**sample, "row_id": (first_group + place) * rows_per_group + row}


def sampling_metrics(assembly: Assembly, *, num_before: int) -> Scalars:
    """What the rounds came to, equal on all ranks; counts are of groups."""
    metrics = {
        "sampling/rounds": mean(assembly.num_rounds),
        "sampling/groups_drawn": mean(assembly.num_drawn),
        "sampling/groups_carried_in": mean(num_before),
        "sampling/acceptance": mean(assembly.num_accepted, assembly.num_drawn),
    }
    return metrics | {f"sampling/groups_{cause.name.lower()}": mean(assembly.num_rejected[cause]) for cause in REJECTED}
