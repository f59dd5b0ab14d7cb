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
from collections.abc import Iterable, Mapping, Sequence
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
from rljob_worker.stages.draws.assembly import Assembly, Carries, Int64, Outcome, outcomes_of
from rljob_worker.stages.draws.draw_assignment import draw_assignment_of
from rljob_worker.stages.draws.partial_rows import complete_groups, like
from rljob_worker.stages.draws.places import numbered, renumbered
from rljob_worker.stages.played.failed_trajectories import failed_of_groups
from rljob_worker.stages.rewarding.reward import NUM_SAMPLED_GROUPS, Reward, kept_places, reward_metrics, spread_over
from rljob_worker.stages.rollout import Rollout, staleness_metrics
from rljob_worker.stages.sampling_metrics import FIRST_REWARD, partial_metrics, sampling_metrics
from rljob_worker.stages.stage import Resources, StageContext, StageResult
from rljob_worker.trajectories import Trajectories

NO_NUMBERS: Int64 = np.empty(0, np.int64)


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
    """Remembers the next draw number; surplus groups while the policy that made them is the current one; and with
    `rollout.partial` all surplus, and groups that are not complete.

    It is Rollout with `rollout.partial` as well, which has no rewards and rejects nothing.
    """

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
        self._next_number: int | None = None
        self._surplus: Int64 = np.empty(0, np.int64)
        """Draw numbers of the surplus, on any rank."""
        self._rows: list[Batch] = []
        """This rank's rows of it."""
        self._unfinished: Int64 = np.empty(0, np.int64)
        """Draw numbers of groups that are not complete, on any rank."""
        self._unfinished_rows: Batch | None = None
        """This rank's rows of them."""
        self._first_numbers: tuple[int, ...] = ()
        """First draw numbers of the steps of which groups may be in flight."""

    def run(self, batch: Batch | None, context: StageContext) -> StageResult:
        before = self._begin(self._first_number(context.step))
        assembly, rounds, assignment = before, list[_Drawn](), draw_assignment_of(context)
        num_failed = 0
        while assembly.has_work:
            if assembly.num_rounds == self._most_rounds:
                raise BadData(assembly.explain(context.step))
            numbers = assembly.draw(self._oversampling)
            result = self._draw_round(assignment.shares(numbers, assembly.num_rounds), context)
            known = known_outcomes(np.concatenate([assembly.unfinished, numbers]), result)
            outcomes, failed = split_outcomes(assignment.outcomes(known, assembly.num_rounds))
            assembly = assembly.after(outcomes)
            num_failed += int(failed.sum())
            if self._spec.rollout.played is not None:
                num_complete = assembly.num_accepted + sum(assembly.num_rejected.values())
                num_played = max(num_complete, assembly.batch_size) * self._group_size
                self._rollout.require_few_failed(context.step, num_failed, num_played)
            rounds += result
        held = self._held(rounds, context)
        metrics = sampling_metrics(before, assembly) | self._keep_surplus(assembly, held, context.step)
        # the first round of the next step, read while this one trains
        coming = Assembly(assembly.batch_size, assembly.next_number, self._surplus).draw(self._oversampling)
        self._rollout.read_ahead(assignment.likely(coming))
        first_group = (context.step - 1) * assembly.batch_size
        out = numbered(held, assembly.batch, first_group=first_group, rows_per_group=self._rows_per_group)
        if self._is_partial:
            metrics |= partial_metrics(self._spec, assembly, self._unfinished_rows, out, context.step)
        if "row_weights" in self._writes:
            weights = self._row_weights(out, context)
            out = out.with_columns({"row_weights": Column.fixed(weights)})
            of_trajectories = weights[Trajectories(out.row_ids, self._rows_per_trajectory, self._spec.num_agents).first]
            metrics["sampling/rows_drawn_fraction"] = mean(int(np.count_nonzero(of_trajectories)), len(of_trajectories))
        metrics |= staleness_metrics(out, self._spec, context.step)
        metrics |= assignment.merged([result.metrics for result in rounds])
        samples = [
            renumbered(
                sample, assembly.batch, self._surplus, first_group=first_group, rows_per_group=self._rows_per_group
            )
            for result in rounds
            for sample in result.samples
        ]
        out = out.select(name for name in out.columns if name in self._writes)
        return StageResult(out, context.counted(metrics), samples)

    def _begin(self, first: int) -> Assembly:
        """The step before its first round. first: its first draw number."""
        carries, partial = None, self._spec.rollout.partial
        if partial is not None:
            self._first_numbers = (*self._first_numbers, first)[-partial.max_carries - 1 :]
            carries = Carries(partial.max_carries, self._first_numbers)
        return Assembly(self._spec.data.batch_size, first, self._surplus, self._unfinished, carries)

    # ---- one round

    def _draw_round(self, shares: Iterable[Int64], context: StageContext) -> list[_Drawn]:
        """Draw this rank's shares of a round; with `rollout.partial` that is one, and what was not complete goes on
        beside it."""
        result = [self._draw(share, self._unfinished_rows, context) for share in shares]
        if self._is_partial:
            (drawn,) = result
            self._unfinished_rows = drawn.unfinished if drawn.unfinished else None
        return result

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
        first = self._first_number(step)
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

    def _held(self, rounds: Sequence[_Drawn], context: StageContext) -> Batch:
        """This rank's rows of all groups that were accepted, in the order of their draw numbers."""
        parts = [*self._rows, *(accepted_rows(result) for result in rounds)]
        # a rank that held nothing back and drew nothing still says which columns there are
        return Batch.concat(parts or [self._draw(NO_NUMBERS, None, context).batch])

    def _keep_surplus(self, assembly: Assembly, held: Batch, step: int) -> Scalars:
        """Hold back what is too much if the step leaves the policy as it is; or, where batches are off-policy anyway,
        what is of this step: it is used in the next one or not at all, and is one version older then. With
        `rollout.partial` nothing is given up: what is quick to answer would be trained on more often."""
        surplus, is_old = assembly.surplus, np.isin(assembly.surplus, self._surplus)
        self._next_number, self._unfinished = assembly.next_number, assembly.unfinished
        if not self._is_partial and not is_warm_up(self._spec, step):
            surplus = surplus[~is_old] if self._spec.rollout.max_staleness > 0 else surplus[:0]
        self._surplus = surplus
        self._rows = [held.take(np.flatnonzero(np.isin(held.group_ids, self._surplus)))]
        return {
            "sampling/groups_carried_on": mean(len(self._surplus)),
            "sampling/groups_surplus": mean(len(assembly.surplus) - len(self._surplus)),
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
        state = {"next_ordinal": self._next_number, "carried": self._surplus.tolist()}
        if not self._is_partial:
            return state
        return {**state, "unfinished": self._unfinished.tolist(), "first_ordinals": list(self._first_numbers)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._next_number = state["next_ordinal"]
        self._surplus = np.array(state["carried"], np.int64)
        self._unfinished = np.array(state.get("unfinished", []), np.int64)
        self._first_numbers = tuple(state.get("first_ordinals", ()))

    def rows(self) -> Batch | None:
        if not len(self._surplus) and not len(self._unfinished):
            return None
        surplus, unfinished = self._rows[0], self._unfinished_rows
        if unfinished is None:
            return surplus
        return Batch.concat([surplus, like(self._rollout.with_journals(unfinished), surplus)])

    def load_rows(self, parts: Sequence[Batch]) -> None:
        if not parts:
            self._rows, self._unfinished_rows = [], None
            return
        rows = Batch.concat([with_versions(part) for part in parts])
        if self._is_partial:
            rows, unfinished = complete_groups(rows)
            self._unfinished_rows = unfinished if len(unfinished) else None
        self._rows = [rows]


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
