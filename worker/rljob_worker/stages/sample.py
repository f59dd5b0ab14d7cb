"""Sample: rollout and reward in rounds, until the step has a full batch of groups that teach something.

DAPO's dynamic sampling (https://arxiv.org/abs/2503.14476) inside one stage. What else needs rollout and reward together
is here too: ReMax's greedy baseline and PF-PPO's resampling.

Prompts are drawn by number, and their randomness goes with the draw number. A group that is accepted gets a place in
the batch: step s has the groups [(s - 1) * batchSize, s * batchSize) whatever was rejected, so that everything after
this stage, mini-batches above all, is as it is without it. Who draws what is a `DrawAssignment`. Rows leave on the rank
that drew them; the edges from here are routed by layout, which deals groups out evenly. What no batch has taken yet is
kept by the owners of draw numbers (`OwnedGroups`); what generates keeps nothing from one step to the next.
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
from rljob_worker.algorithms.resampling import row_weights
from rljob_worker.batch import Batch, Column
from rljob_worker.batch.trajectories import Trajectories
from rljob_worker.errors import BadData
from rljob_worker.metrics.scalars import Scalars, mean, mean_of, merge_all
from rljob_worker.stages.draws.assembly import Int64, Outcome, outcomes_of
from rljob_worker.stages.draws.draw_assignment import draw_assignment_of
from rljob_worker.stages.draws.owned_groups import NO_NUMBERS, OwnedGroups
from rljob_worker.stages.draws.places import numbered, renumbered
from rljob_worker.stages.played.failed_trajectories import failed_of_groups
from rljob_worker.stages.rewarding.reward import NUM_SAMPLED_GROUPS, Reward, kept_places, reward_metrics, spread_over
from rljob_worker.stages.rollout import Rollout, staleness_metrics
from rljob_worker.stages.sampling_metrics import FIRST_REWARD, partial_metrics, sampling_metrics
from rljob_worker.stages.stage import Resources, StageContext, StageResult


@dataclass(frozen=True, slots=True)
class _Drawn:
    """This rank's rows of some groups, and what became of each group that is complete."""

    numbers: Int64
    """Draw numbers of the groups that are complete."""
    batch: Batch
    """With rewards where the stage has them."""
    outcomes: Int64
    """[numbers]."""
    metrics: Scalars
    samples: list[dict[str, Any]]
    unfinished: Batch | None = None
    """Rows of groups that are not complete; None without `rollout.partial`."""
    failed: Int64 | None = None
    """[numbers], trajectories of each group that failed; None without conversations."""


class Sample:
    """It is Rollout with `rollout.partial` as well, which has no rewards and rejects nothing."""

    def __init__(self, stage: StagePlan, resources: Resources) -> None:
        plan = resources.plan
        self._spec = plan.spec_of(stage.models[0])
        self._sampling = self._spec.algorithm.sampling
        self._group_size = self._spec.algorithm.group_size
        self._rollout = Rollout(stage, resources)
        self._reward = Reward(stage, resources) if stage.run == "Sample" else None
        self._rows_per_trajectory = plan.rows_per_trajectory
        self._rows_per_group = self._group_size * self._rows_per_trajectory
        self._reward_reads = STAGES["Reward"].columns(self._spec, (), False).reads
        self._writes = frozenset(stage.writes)
        self._is_partial = self._spec.rollout.partial is not None
        self._is_dynamic = self._reward is not None and self._sampling.dynamic
        self._oversampling = self._sampling.oversampling if self._is_dynamic else 1.0
        self._most_rounds = plan.most_rounds(stage)
        self._owned = OwnedGroups(self._spec)

    def run(self, batch: Batch | None, context: StageContext) -> StageResult:
        before = self._owned.begin(context)
        kept, unfinished = self._owned.surplus_rows, self._owned.unfinished_rows
        assembly, rounds, assignment = before, list[_Drawn](), draw_assignment_of(context)
        num_failed = 0
        while assembly.has_work:
            if assembly.num_rounds == self._most_rounds:
                raise BadData(assembly.explain(context.step))
            numbers = assembly.draw(self._oversampling)
            result = [
                self._draw(share, unfinished, context) for share in assignment.shares(numbers, assembly.num_rounds)
            ]
            if self._is_partial:  # where a round is one share, and what is not complete goes on beside it
                unfinished = result[0].unfinished or None
            known = known_outcomes(np.concatenate([assembly.unfinished, numbers]), result)
            outcomes, failed = split_outcomes(assignment.outcomes(known, assembly.num_rounds))
            assembly = assembly.after(outcomes)
            num_failed += int(failed.sum())
            if self._spec.rollout.played is not None:
                num_complete = assembly.num_accepted + sum(assembly.num_rejected.values())
                num_played = max(num_complete, assembly.batch_size) * self._group_size
                self._rollout.require_few_failed(context.step, num_failed, num_played)
            rounds += result
        held = self._held(kept, rounds, context)
        metrics = sampling_metrics(before, assembly) | self._owned.keep(assembly, held, unfinished, context)
        # the first round of the next step, read while this one trains
        self._rollout.read_ahead(assignment.likely(self._owned.coming(assembly, self._oversampling)))
        first_group = (context.step - 1) * assembly.batch_size
        out = numbered(held, assembly.batch, first_group=first_group, rows_per_group=self._rows_per_group)
        if self._is_partial:
            metrics |= partial_metrics(self._spec, assembly, unfinished, out, context.step)
        if "row_weights" in self._writes:
            weights = self._row_weights(out, context)
            out = out.with_columns({"row_weights": Column.fixed(weights)})
            of_trajectories = weights[Trajectories(out.row_ids, self._rows_per_trajectory, self._spec.num_agents).first]
            metrics["sampling/rows_drawn_fraction"] = mean(int(np.count_nonzero(of_trajectories)), len(of_trajectories))
        metrics |= staleness_metrics(out, self._spec, context.step)
        metrics |= assignment.merged([result.metrics for result in rounds])
        samples = [
            renumbered(
                sample,
                assembly.batch,
                self._owned.surplus,
                first_group=first_group,
                rows_per_group=self._rows_per_group,
            )
            for result in rounds
            for sample in result.samples
        ]
        out = out.select(name for name in out.columns if name in self._writes)
        return StageResult(out, context.counted(metrics), samples)

    # ---- one round

    def _draw(self, numbers: Int64, carried: Batch | None, context: StageContext) -> _Drawn:
        """Responses to some prompts, and more of those that are not complete; and rewards."""
        unfinished = None
        if self._is_partial:
            batch, unfinished, metrics = self._rollout.draw_round(numbers, carried, context)
            numbers = np.unique(batch.group_ids)
        else:
            batch, metrics = self._rollout.draw(numbers, context)
        failed = None if self._spec.rollout.played is None else failed_of_groups(batch, numbers, self._spec)
        if self._reward is None:
            accepted, samples = np.full(len(numbers), Outcome.ACCEPTED, np.int64), self._rollout.take_samples()
            return _Drawn(numbers, batch, accepted, metrics, samples, unfinished, failed)
        started = time.perf_counter()
        trajectories = Trajectories(batch.row_ids, self._rows_per_trajectory, self._spec.num_agents)
        ends = trajectories.ends(batch.select([*self._reward_reads, "truncated"]))
        kept, num_trajectories = kept_places(ends), len(ends)
        if failed is not None:
            ends = ends.take(kept)
        scored = self._reward.score_for_copy(
            ends.select(self._reward_reads), context, self._shown(ends.group_ids, context.step)
        )
        rewards = spread_over(scored.total, kept, num_trajectories)
        columns = {"rewards": Column.fixed(trajectories.on_rows(rewards))}
        if self._is_partial:
            columns[FIRST_REWARD] = Column.fixed(trajectories.on_rows(scored.correct))
        else:
            metrics |= reward_metrics(scored.total, scored.correct, ends.values_of("source"))
        metrics |= scored.metrics
        metrics["time/reward_seconds"] = mean(time.perf_counter() - started)
        truncated = trajectories.any_row(batch["truncated"].values)
        correct = spread_over(scored.correct, kept, num_trajectories)
        outcomes = self._outcomes(truncated, rewards, correct, kept)
        if "baseline_rewards" in self._writes:
            columns["baseline_rewards"], result = self._baseline(batch, context)
            metrics = merge_all([metrics, result])
        samples = scored.samples + self._rollout.take_samples()
        return _Drawn(numbers, batch.with_columns(columns), outcomes, metrics, samples, unfinished, failed)

    def _shown(self, numbers: Int64, step: int) -> Int64:
        """Which rows go to samples.jsonl: those of the step's first groups; where groups are complete in another order
        than they begin in, those of the first of as many as a batch has."""
        first = self._owned.first_number(step)
        places = numbers % self._spec.data.batch_size if self._is_partial else numbers - first
        return np.flatnonzero(places < NUM_SAMPLED_GROUPS)

    def _outcomes(self, truncated: np.ndarray, rewards: np.ndarray, correct: np.ndarray, kept: Int64) -> Int64:
        """The outcome of each group. All arguments are [trajectories] but the last: places of those that did not
        fail."""
        if not self._is_dynamic:
            return np.full(len(rewards) // self._group_size, Outcome.ACCEPTED, np.int64)
        shape, standing = (-1, self._group_size), stand_ins(len(rewards), kept, self._group_size)
        return outcomes_of(
            rewards[standing].reshape(shape),
            correct[standing].reshape(shape),
            truncated[standing].reshape(shape),
            mask_truncated=self._spec.algorithm.mask_truncated,
            success_range=(0.0, 1.0) if (bounds := self._sampling.success_range) is None else (bounds.low, bounds.high),
        )

    def _baseline(self, batch: Batch, context: StageContext) -> tuple[Column, Scalars]:
        """The reward of the greedy response to each row's prompt; it is not a row of the batch, and in no other
        figure."""
        greedy, metrics = self._rollout.greedy(batch.select(self._reward_reads), context)
        assert self._reward is not None
        total = self._reward.score_for_copy(greedy, context, NO_NUMBERS).total
        metrics["reward/baseline"] = mean_of(total)
        return Column.fixed(total[group_of_row(batch)]), metrics

    # ---- the end of a step

    def _held(self, kept: Batch | None, rounds: Sequence[_Drawn], context: StageContext) -> Batch:
        """This rank's rows of all groups that were accepted, in the order of their draw numbers. kept: those of the
        surplus of the step before."""
        parts = [*([] if kept is None else [kept]), *(accepted_rows(result) for result in rounds)]
        # a rank that owned nothing and drew nothing still says which columns there are
        return Batch.concat(parts or [self._draw(NO_NUMBERS, None, context).batch])

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

    # ---- checkpoints

    def state(self) -> dict[str, Any]:
        return self._owned.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._owned.load_state(state)

    def rows(self) -> Batch | None:
        unfinished = self._owned.unfinished_rows
        return self._owned.rows(None if unfinished is None else self._rollout.with_journals(unfinished))

    def load_rows(self, parts: Sequence[Batch]) -> None:
        self._owned.load_rows(parts)


FAILED_UNIT = 8
"""An outcome and a number of failed trajectories are one byte: the outcome, and this times the number."""
MOST_FAILED = 31


def split_outcomes(known: Int64) -> tuple[Int64, Int64]:
    """Outcomes of groups, and how many of their trajectories failed: [groups] both."""
    return known % FAILED_UNIT, known // FAILED_UNIT


def stand_ins(number: int, kept: Int64, group_size: int) -> Int64:
    """For each of `number` trajectories itself, or one of its group that did not fail in place of one that did, so that
    whether rewards vary is a question of those that did not; int64 [number]."""
    standing = np.arange(number)
    if len(kept) == number:
        return standing
    first = np.full(number // group_size, -1)
    first[(kept // group_size)[::-1]] = kept[::-1]
    of_group = np.repeat(first, group_size)
    return np.where(np.isin(standing, kept) | (of_group < 0), standing, of_group)


def known_outcomes(numbers: Int64, result: Sequence[_Drawn]) -> Int64:
    """What became of the draw numbers of a round, as far as one rank drew them: [numbers], 0 for others."""
    known = np.zeros(len(numbers), np.int64)
    for item in result:
        failed = 0 if item.failed is None else FAILED_UNIT * np.minimum(item.failed, MOST_FAILED)
        known[np.searchsorted(numbers, item.numbers)] = item.outcomes + failed
        if item.unfinished is not None:
            known[np.searchsorted(numbers, np.unique(item.unfinished.group_ids))] = Outcome.UNFINISHED
    return known


def accepted_rows(drawn: _Drawn) -> Batch:
    """The rows of the groups that were accepted."""
    return drawn.batch.take(np.flatnonzero((drawn.outcomes == Outcome.ACCEPTED)[group_of_row(drawn.batch)]))


def group_of_row(batch: Batch) -> Int64:
    """Which of the batch's groups each row is of, counted from 0: [rows]."""
    of_row: Int64 = np.unique(batch.group_ids, return_inverse=True)[1]
    return of_row
