"""Validation: the policy answers the validation prompts, each rank its share; the first reward says who is right."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import chain, pairwise
from typing import Any

import numpy as np

from rljob_api.planning.plan import Plan
from rljob_worker.batch import Batch, Column
from rljob_worker.data.dataset import PromptDataset
from rljob_worker.engines.rollout.generate import generate
from rljob_worker.engines.rollout.of_job import max_tokens_of, validation_sampling
from rljob_worker.engines.rollout.protocol import RolloutEngine
from rljob_worker.rewards.runner import RewardRunner
from rljob_worker.scalars import Scalars, mean, merge_all
from rljob_worker.stages.reward import begins_rewards, reward_rows
from rljob_worker.stages.rollout import asked_batch, rollout_batch

PIECE_PROMPTS = 1024
"""What a rank reads, answers and judges at once: its memory and its cache of keys and values do not grow with the data
set."""


class Validation:
    """One rank's share of every validation. Without rewards it is a peer that helps to generate what the leader of its
    copy judges."""

    def __init__(
        self,
        plan: Plan,
        dataset: PromptDataset,
        engine: RolloutEngine,
        rewards: RewardRunner | None,
        tokenizer: Any,
        dp_rank: int,
        dp_size: int,
    ) -> None:
        spec = plan.spec
        self._dataset, self._engine, self._rewards, self._tokenizer = dataset, engine, rewards, tokenizer
        self._share = range(dp_rank, len(dataset), dp_size)
        self._spec, self._sampling = spec, validation_sampling(spec)

    def run(self) -> tuple[Scalars, list[dict[str, Any]]]:
        """Accuracy overall and per source; a few rows to look at."""
        started = time.perf_counter()
        metrics, shown = list[Scalars](), list[dict[str, Any]]()
        for piece, after in pairwise(chain(self._pieces(), [None])):
            assert piece is not None
            prompts = self._dataset.fetch(piece)
            if after is not None:
                self._dataset.read_ahead(after)
            max_tokens = max_tokens_of(self._spec, Column.ragged(prompts.prompt_ids).lengths)
            asked = asked_batch(prompts, piece, piece, 1)
            begin = None if self._rewards is None else begins_rewards(self._rewards, asked, self._decode)
            responses = generate(self._engine, prompts.prompt_ids, self._sampling, piece, 1, max_tokens, begin)
            if self._rewards is not None:
                found, rows = self._judged(self._rewards, rollout_batch(asked, responses, self._engine.version))
                metrics, shown = [*metrics, found], shown or rows
        return merge_all([*metrics, {"time/validation_seconds": mean(time.perf_counter() - started)}]), shown

    def _pieces(self) -> Iterator[np.ndarray]:
        """Ordinals of this rank's prompts, at least one piece: a rank of no prompts says that it has none."""
        for first in range(0, max(1, len(self._share)), PIECE_PROMPTS):
            yield np.array(self._share[first : first + PIECE_PROMPTS], np.int64)

    def _judged(self, rewards: RewardRunner, batch: Batch) -> tuple[Scalars, list[dict[str, Any]]]:
        """What was right of rows whose rewards were begun, and the first of them."""
        correct = rewards.collect(batch.row_ids.tolist()).rewards[:, 0]
        rows = reward_rows(batch.take(np.arange(min(2, len(batch)))), self._decode)
        shown = [
            {"validation": True, **_shown(row), "reward": float(reward)}
            for row, reward in zip(rows, correct, strict=False)
        ]
        return accuracy(correct, batch), shown

    def _decode(self, ids: np.ndarray) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))


def accuracy(correct: np.ndarray, batch: Batch) -> Scalars:
    """Mean of the first reward over all rows and over each source's."""
    metrics = {
        "validation/accuracy": mean(float(correct.sum()), len(correct)),
        "validation/response_length": mean(float(batch["response_ids"].lengths.sum()), len(correct)),
    }
    sources = np.array(batch.values_of("source"), dtype=object)
    for source in sorted(set(sources)):
        mine = correct[sources == source]
        metrics[f"validation/accuracy/{source}"] = mean(float(mine.sum()), len(mine))
    return metrics


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    return {"row_id": row["row_id"], "prompt": row["prompt"], "response": row["response"]}
