"""Rollout: reads this rank's prompts of the step and samples `groupSize` responses to each.

Which prompts are this rank's is a `DrawAssignment`, of which a step is one round; nothing becomes of it but that all
are accepted, so ranks have no outcomes to exchange."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from rljob_api.catalogue.stages import STAGES
from rljob_api.planning.plan import StagePlan
from rljob_api.planning.weights.versions import most_versions_behind, num_updates, policy_version
from rljob_api.v1alpha1 import RLJobSpec
from rljob_worker.batch import Batch, Column
from rljob_worker.data.dataset import PromptDataset, Prompts
from rljob_worker.engines.picture_reader import prompt_pictures
from rljob_worker.engines.rollout.generate import Responses, answer, generate
from rljob_worker.engines.rollout.job_sampling import max_tokens_of, training_sampling
from rljob_worker.engines.rollout.protocol import RolloutEngine
from rljob_worker.engines.rollout.requests import Sampling
from rljob_worker.metrics.scalars import Scalars, maximum, mean, mean_of, total
from rljob_worker.rewards.running.runner import RewardRunner
from rljob_worker.stages.draws.draw_assignment import draw_assignment_of
from rljob_worker.stages.draws.partial_rows import PartialRound, complete_groups
from rljob_worker.stages.played.conversation_rollout import Begin, ConversationRollout, Played
from rljob_worker.stages.played.failed_trajectories import failed_of_groups, require_few_failed
from rljob_worker.stages.played.played_rounds import PlayedRounds
from rljob_worker.stages.rewarding.reward import (
    NOT_OF_REWARD_ROWS,
    NUM_SAMPLED_GROUPS,
    begins_group_rewards,
    begins_rewards,
    reward_rows,
)
from rljob_worker.stages.rollout_rows import asked_batch, rollout_batch, rows_of_groups, without_responses
from rljob_worker.stages.stage import Resources, StageContext, StageResult

MOST_COUNTED = 254
"""Failed trajectories of a group that ranks report to each other, at most: of a group they exchange a byte."""


class Rollout:
    """The source of the DAG: prompts come by ordinal, so every rank reads only those that it answers."""

    def __init__(self, stage: StagePlan, resources: Resources) -> None:
        spec, policy = resources.plan.spec, stage.models[0]
        self._dataset: PromptDataset = resources.datasets[policy]
        self._engine: RolloutEngine = resources.rollout_engines[policy]
        self._batch_size = spec.data.batch_size
        self._group_size = spec.algorithm.group_size
        self._rows_per_trajectory = resources.plan.rows_per_trajectory
        self._writes = frozenset(stage.writes)
        self._spec, self._sampling = spec, training_sampling(spec, policy)
        self._rewards = resources.rewards.get(policy) if resources.plan.begins_rewards(stage.name) else None
        self._conversations = resources.conversations.get(policy)
        self._rounds = PlayedRounds(self._conversations) if self._conversations and spec.rollout.partial else None
        self._reward_reads = STAGES["Reward"].columns(spec, (), False).reads
        self.samples: list[dict[str, Any]] = []
        """Conversations of the last draws that a person is shown; who takes them empties it."""
        self.failures: dict[str, tuple[int, str]] = {}
        """For the last draws, by cause, how many trajectories failed here and what is said of one."""

    def run(self, batch: Batch | None, context: StageContext) -> StageResult:
        first = (context.step - 1) * self._batch_size
        step = np.arange(first, first + self._batch_size, dtype=np.int64)
        assignment = draw_assignment_of(context)
        after = assignment.likely(step + self._batch_size)
        parts = list[Batch]()
        figures = list[Scalars]()
        for share in assignment.shares(step, 0):
            part, metrics = self.draw(share, context, None if parts else after)
            parts.append(part)
            figures.append(metrics)
        if not parts:  # a rank that draws nothing still says which columns there are
            part, metrics = self.draw(step[:0], context, after)
            parts, figures = [part], [metrics]
        batch, metrics = Batch.concat(parts), assignment.merged(figures)
        if self._conversations is not None and context.numbers is None:  # who receives a guest's rows counts these
            failed = failed_of_groups(batch, step, self._spec)
            known = np.where(np.isin(step, batch.group_ids), 1 + np.minimum(failed, MOST_COUNTED), 0)
            num_failed = int((assignment.outcomes(known, 0) - 1).sum())
            self.require_few_failed(context.step, num_failed, self._spec.num_rows)
        metrics |= staleness_metrics(batch, self._spec, context.step)
        batch = batch.select(name for name in batch.columns if name in self._writes)
        return StageResult(batch, context.counted(metrics), self.take_samples())

    def draw(
        self, ordinals: np.ndarray, context: StageContext, after: np.ndarray | None = None
    ) -> tuple[Batch, Scalars]:
        """`groupSize` responses to each of some prompts, with every column there is, and figures of the rows. Their
        rewards are begun where the plan says so.

        after: what will be drawn next, as far as it is known: read while these are generated.
        """
        if self._conversations is not None:
            return self._play(self._conversations, ordinals, context, after)
        prompts, asked, reading = self._asked(ordinals, after)
        started = time.perf_counter()
        responses = self._generate(prompts, self._sampling, asked, self._group_size, context)
        generation = seconds_since(started)
        batch = rollout_batch(asked, responses, self._engine.version)
        return batch, rollout_metrics(batch) | reading | generation

    def _play(
        self, conversations: ConversationRollout, ordinals: np.ndarray, context: StageContext, after: np.ndarray | None
    ) -> tuple[Batch, Scalars]:
        """`draw` by conversations."""
        prompts, reading = self._read(ordinals, after)
        num_shown = int(np.count_nonzero(ordinals % self._batch_size < NUM_SAMPLED_GROUPS)) * self._group_size
        started = time.perf_counter()
        played = conversations.play(
            prompts, ordinals, self._sampling, self._group_size, context.copy,
            step=context.step, begin=self._begin(context), num_shown=num_shown,
        )  # fmt: skip
        return played.batch, self._noted(played) | reading | seconds_since(started)

    def _play_round(
        self, rounds: PlayedRounds, ordinals: np.ndarray, carried: Batch | None, context: StageContext
    ) -> tuple[Batch, Batch, Scalars]:
        """`draw_round` by conversations."""
        prompts, reading = self._read(rounds.unread(ordinals, carried), None)
        started = time.perf_counter()
        played = rounds.play(
            prompts, ordinals, carried, self._sampling, context.copy,
            step=context.step, begin=self._begin(context), shows=self._is_shown,
        )  # fmt: skip
        assert played.unfinished is not None
        return played.batch, played.unfinished, self._noted(played) | reading | seconds_since(started)

    def _begin(self, context: StageContext) -> Begin | None:
        """What begins rewards of a group; None where they are not this rank's to begin."""
        if self._rewards is None or not context.copy.is_leader:
            return None
        return partial(self._begin_rewards, self._rewards, context)

    def _is_shown(self, group: int) -> bool:
        return group % self._batch_size < NUM_SAMPLED_GROUPS

    def _noted(self, played: Played) -> Scalars:
        """Keep what there is to say of conversations besides their rows and figures."""
        self.samples += played.samples
        self.failures |= played.failures
        return played.metrics

    def with_journals(self, unfinished: Batch) -> Batch:
        """Rows of groups that are not complete, as a checkpoint has them."""
        return unfinished if self._rounds is None else self._rounds.with_journals(unfinished)

    def _begin_rewards(self, rewards: RewardRunner, context: StageContext, ends: Batch) -> None:
        columns = [name for name in self._reward_reads if name in ends and name not in NOT_OF_REWARD_ROWS]
        if len(ends):
            rewards.begin(reward_rows(ends.select(columns), context.decode))

    def take_samples(self) -> list[dict[str, Any]]:
        """Conversations that were played since the last call, as many as a person is shown."""
        samples, self.samples = self.samples, []
        return samples

    def require_few_failed(self, step: int, num_failed: int, num_played: int) -> None:
        """Raises BadData where more trajectories of a step failed, on all ranks, than the job allows."""
        failures, self.failures = self.failures, {}
        require_few_failed(self._spec, step, num_failed, num_played, failures)

    def draw_round(
        self, ordinals: np.ndarray, carried: Batch | None, context: StageContext
    ) -> tuple[Batch, Batch, Scalars]:
        """A round of `rollout.partial`: some prompts, and the groups of this rank that were not complete. Rows of
        complete groups with every column there is, rows of the others, and figures of the round. Rewards of a group
        are begun once it is complete, where the plan says so."""
        if self._rounds is not None:
            return self._play_round(self._rounds, ordinals, carried, context)
        _, asked, reading = self._asked(ordinals, None)
        work = PartialRound.of(asked, carried, context.step, self._spec)
        begin = None
        if self._rewards is not None and context.copy.is_leader:
            begin = begins_group_rewards(self._rewards, work, context.decode)
        started = time.perf_counter()
        responses = answer(self._engine, work.requests(self._sampling), begin)
        generation = seconds_since(started)
        drawn = rollout_batch(without_responses(work.rows), responses, self._engine.version)
        complete, unfinished = complete_groups(work.after(drawn, responses.endings))
        num_new = len(responses.response_ids.values) - work.num_begun
        figures = {
            "tokens/response_total": total(float(num_new)),
            "partial/rows_cut_off": total(float(work.num_cut_off(responses.endings))),
        }
        return complete, unfinished, reading | generation | figures

    def _asked(self, ordinals: np.ndarray, after: np.ndarray | None) -> tuple[list[np.ndarray], Batch, Scalars]:
        """Prompts by ordinal, the rows that are asked for, and figures of reading. after: as for `draw`."""
        prompts, metrics = self._read(ordinals, after)
        row_ids = rows_of_groups(ordinals, self._group_size, self._rows_per_trajectory)
        return prompts.prompt_ids, asked_batch(prompts, row_ids, ordinals, self._group_size), metrics

    def _read(self, ordinals: np.ndarray, after: np.ndarray | None) -> tuple[Prompts, Scalars]:
        started = time.perf_counter()
        prompts = self._dataset.fetch(ordinals)
        metrics = {"time/prompts_seconds": mean(time.perf_counter() - started)}
        metrics["data/filtered_prompts"] = maximum(float(self._dataset.num_filtered))
        if after is not None:
            self.read_ahead(after)
        return prompts, metrics

    def read_ahead(self, ordinals: np.ndarray) -> None:
        """Begin to read the prompts that are drawn next."""
        self._dataset.read_ahead(ordinals)

    def greedy(self, batch: Batch, context: StageContext) -> tuple[Batch, Scalars]:
        """The most likely response to each prompt of a drawn batch, in the first row of its group. batch: with what
        rewards read; those of the responses are begun likewise."""
        first = batch.take(np.unique(batch.index.heads()))
        started = time.perf_counter()
        sampling = replace(self._sampling, temperature=0.0)
        responses = self._generate(first.values_of("prompt_ids"), sampling, first, 1, context)
        metrics = seconds_since(started)
        return first.with_columns({"response_ids": responses.response_ids}), metrics

    def _generate(
        self, prompts: list[np.ndarray], sampling: Sampling, asked: Batch, group_size: int, context: StageContext
    ) -> Responses:
        begin = None
        if self._rewards is not None and context.copy.is_leader:
            begin = begins_rewards(self._rewards, asked, context.decode)
        max_tokens = max_tokens_of(self._spec, Column.ragged(prompts).lengths)
        return generate(
            self._engine, prompts, sampling, asked.row_ids, group_size, max_tokens, begin, prompt_pictures(asked)
        )


def seconds_since(started: float) -> Scalars:
    """How long it was generated for. started: of `time.perf_counter`."""
    return {"time/generation_seconds": mean(time.perf_counter() - started)}


def staleness_metrics(batch: Batch, spec: RLJobSpec, step: int) -> Scalars:
    """By how many updates of the policy the weights that drew a token are behind those that `step` begins to train,
    over all tokens; and where rows may have several versions, which part of the tokens is how old."""
    of_tokens = batch["token_versions"].values
    if spec.rollout.played is not None:  # the world's tokens are of no weights
        of_tokens = of_tokens[batch["response_mask"].values.astype(bool)]
    versions, which = np.unique(of_tokens, return_inverse=True)
    newest = num_updates(spec, policy_version(spec, step - 1))
    staleness = np.array([newest - num_updates(spec, int(version)) for version in versions], np.int64)[which]
    metrics = {"staleness/mean": mean_of(staleness)}
    if len(staleness):
        metrics["staleness/max"] = maximum(float(staleness.max()))
    if spec.rollout.partial is not None:
        oldest = most_versions_behind(spec) + 1
        counts = np.bincount(staleness.clip(0, oldest), minlength=oldest + 1)
        metrics |= {f"staleness/fraction/age_{age}": mean(int(n), len(staleness)) for age, n in enumerate(counts)}
    return metrics


def rollout_metrics(batch: Batch) -> Scalars:
    """Lengths and truncation of the fresh responses."""
    lengths, rows = batch["response_ids"].lengths, len(batch)
    metrics = {
        "response_length/mean": mean_of(lengths),
        "response/truncated_fraction": mean_of(batch["truncated"].values),
        "tokens/response_total": total(float(lengths.sum())),
        "tokens/total": total(float(batch.num_tokens.sum())),
    }
    if rows:
        metrics["response_length/max"] = maximum(float(lengths.max()))
    return metrics
