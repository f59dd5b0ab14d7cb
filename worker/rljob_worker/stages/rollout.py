"""Rollout: reads this rank's prompts of the step and samples `groupSize` responses to each."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from rljob_api.planning.plan import StagePlan
from rljob_worker.batch import Batch, Column
from rljob_worker.data.dataset import PromptDataset, Prompts
from rljob_worker.engines.rollout.generate import Responses, generate
from rljob_worker.engines.rollout.of_job import max_tokens_of, training_sampling
from rljob_worker.engines.rollout.protocol import RolloutEngine
from rljob_worker.engines.rollout.requests import Sampling
from rljob_worker.scalars import Scalars, maximum, mean, total
from rljob_worker.stages.filling import share_of_rank
from rljob_worker.stages.stage import Resources, StageContext, StageResult


class Rollout:
    """The source of the DAG: prompts come by ordinal, so every rank reads only its own."""

    def __init__(self, stage: StagePlan, resources: Resources) -> None:
        assert resources.dataset is not None
        spec = resources.plan.spec
        self._dataset: PromptDataset = resources.dataset
        self._engine: RolloutEngine = resources.rollout_engines[stage.models[0]]
        self._batch_size = spec.data.batch_size
        self._group_size = spec.algorithm.group_size
        self._rows_per_trajectory = resources.plan.rows_per_trajectory
        self._writes = frozenset(stage.writes)
        self._spec, self._sampling = spec, training_sampling(spec)

    def run(self, batch: Batch | None, context: StageContext) -> StageResult:
        first = (context.step - 1) * self._batch_size
        step = np.arange(first, first + self._batch_size, dtype=np.int64)
        after = share_of_rank(step + self._batch_size, context.dp_rank, context.dp_size)
        batch, metrics = self.draw(share_of_rank(step, context.dp_rank, context.dp_size), after)
        batch = batch.select(name for name in batch.columns if name in self._writes)
        return StageResult(batch, context.counted(metrics))

    def draw(self, ordinals: np.ndarray, after: np.ndarray | None = None) -> tuple[Batch, Scalars]:
        """`groupSize` responses to each of some prompts, with every column there is, and figures of the rows.

        after: what will be drawn next, as far as it is known: read while these are generated.
        """
        started = time.perf_counter()
        prompts = self._dataset.fetch(ordinals)
        reading = {"time/prompts_seconds": mean(time.perf_counter() - started)}
        if after is not None:
            self.read_ahead(after)
        row_ids = rows_of_groups(ordinals, self._group_size, self._rows_per_trajectory)
        started = time.perf_counter()
        responses = self._generate(prompts.prompt_ids, self._sampling, row_ids, self._group_size)
        generation = {"time/generation_seconds": mean(time.perf_counter() - started)}
        batch = rollout_batch(prompts, responses, row_ids, ordinals, self._group_size, self._engine.version)
        metrics = rollout_metrics(batch) | reading | generation
        metrics["data/filtered_prompts"] = maximum(float(self._dataset.num_filtered))
        return batch, metrics

    def read_ahead(self, ordinals: np.ndarray) -> None:
        """Begin to read the prompts that are drawn next."""
        self._dataset.read_ahead(ordinals)

    def greedy(self, batch: Batch) -> tuple[Batch, Scalars]:
        """The most likely response to each prompt of a drawn batch, in the first row of its group."""
        first = batch.take(np.arange(0, len(batch), self._group_size))
        started = time.perf_counter()
        sampling = replace(self._sampling, temperature=0.0)
        responses = self._generate(first.values_of("prompt_ids"), sampling, first.row_ids, 1)
        metrics = {"time/generation_seconds": mean(time.perf_counter() - started)}
        return first.with_columns({"response_ids": responses.response_ids}), metrics

    def _generate(
        self, prompts: list[np.ndarray], sampling: Sampling, row_ids: np.ndarray, group_size: int
    ) -> Responses:
        max_tokens = max_tokens_of(self._spec, Column.ragged(prompts).lengths)
        return generate(self._engine, prompts, sampling, row_ids, group_size, max_tokens)


def rows_of_groups(group_ids: np.ndarray, group_size: int, rows_per_trajectory: int = 1) -> np.ndarray:
    """The first row of every trajectory, groups in order: [len(group_ids) * group_size].

    trajectory_id = group_id * group_size + member; row_id = trajectory_id * rows_per_trajectory + index of the row.
    """
    return (group_ids[:, None] * group_size + np.arange(group_size)).reshape(-1) * rows_per_trajectory


def rollout_batch(
    prompts: Prompts, responses: Responses, row_ids: np.ndarray, group_ids: np.ndarray, group_size: int, version: int
) -> Batch:
    """One row per response; what belongs to the prompt is stored once for its group."""
    heads, num_rows = np.arange(len(group_ids), dtype=np.int64) * group_size, len(row_ids)
    prompt_ids = Column.ragged(prompts.prompt_ids)
    of_prompts = prompts.columns | {"source": prompts.source, "prompt_ids": prompt_ids}
    columns = {name: column.per_group_at(heads, num_rows) for name, column in of_prompts.items()}
    columns |= {
        "response_ids": responses.response_ids,
        "response_mask": replace(
            responses.response_ids, values=np.ones(len(responses.response_ids.values), np.uint8), dtype="uint8"
        ),
        "rollout_log_probs": responses.log_probs,
        "truncated": Column.fixed(responses.truncated),
        "policy_version": Column.fixed(np.full(num_rows, version, np.int64)),
    }
    num_tokens = np.repeat(prompt_ids.lengths, group_size) + responses.response_ids.lengths
    return Batch(row_ids, np.repeat(group_ids, group_size), num_tokens, columns)


def rollout_metrics(batch: Batch) -> Scalars:
    """Lengths and truncation of the fresh responses."""
    lengths, rows = batch["response_ids"].lengths, len(batch)
    metrics = {
        "response_length/mean": mean(float(lengths.sum()), rows),
        "response/truncated_fraction": mean(float(batch["truncated"].values.sum()), rows),
        "tokens/response_total": total(float(lengths.sum())),
        "tokens/total": total(float(batch.num_tokens.sum())),
    }
    if rows:
        metrics["response_length/max"] = maximum(float(lengths.max()))
    return metrics
