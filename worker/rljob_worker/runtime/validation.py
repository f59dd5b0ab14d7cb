"""Validation: a policy answers the validation prompts, each rank its share; the first reward says who is right."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import numpy as np

from rljob_api.catalogue.columns import KEPT, SUCCESS, SUCCESS_AT_END
from rljob_api.catalogue.stages import STAGES
from rljob_api.v1alpha1 import RLJobSpec
from rljob_worker.batch import Batch, Column
from rljob_worker.batch.row_index import Int64
from rljob_worker.batch.trajectories import Trajectories
from rljob_worker.data.dataset import PromptDataset, Prompts
from rljob_worker.engines.picture_reader import prompt_pictures
from rljob_worker.engines.protocols import CopyOfRanks
from rljob_worker.engines.rollout.generate import generate
from rljob_worker.engines.rollout.job_sampling import max_tokens_of, validation_sampling
from rljob_worker.engines.rollout.protocol import RolloutEngine
from rljob_worker.metrics.pass_at_k import maj_at_k, pass_at_k, sizes
from rljob_worker.metrics.scalars import Scalars, mean, mean_of, means_by_source, merge_all
from rljob_worker.rewards.combine import Rewards
from rljob_worker.rewards.results import RewardResult
from rljob_worker.rewards.running.runner import RewardRunner
from rljob_worker.stages.played.conversation_rollout import ConversationRollout
from rljob_worker.stages.played.episode_rows import TASK, success_figures
from rljob_worker.stages.rewarding.reward import (
    NOT_OF_REWARD_ROWS,
    begins_rewards,
    kept_places,
    reward_rows,
    shown_row,
    spread_over,
    with_thumbnails,
)
from rljob_worker.stages.rollout_rows import asked_batch, rollout_batch, rows_of_groups
from rljob_worker.stages.stage import Alone

PIECE_ROWS = 1024
"""Rows that a rank answers and judges at once, or those of one prompt: its memory and its cache of keys and values do
not grow with the data set."""

TakePiece = Callable[[int], int | None]
"""The next of so many pieces for this rank, by number; None when all are taken."""

SHOWN_PROMPTS, SHOWN_SAMPLES = 2, 4
"""Prompts of a rank, and responses to each, that are there to look at."""


class Validation:
    """One rank's share of every validation of a policy. Without rewards it is a peer that helps to generate what the
    leader of its copy judges."""

    def __init__(
        self,
        spec: RLJobSpec,
        policy: str,
        dataset: PromptDataset,
        engine: RolloutEngine,
        rewards: RewardRunner | None,
        tokenizer: Any,
        dp_rank: int,
        dp_size: int,
        *,
        conversations: ConversationRollout | None = None,
        copy: CopyOfRanks | None = None,
    ) -> None:
        """spec: with the rewards of this policy, the first of which says who is right. conversations: what plays, with
        the ranks of the copy, in a job with conversations."""
        self._conversations, self._copy = conversations, copy or Alone()
        self._dataset, self._engine, self._rewards, self._tokenizer = dataset, engine, rewards, tokenizer
        self._dp_rank, self._dp_size = dp_rank, dp_size
        self._spec, self._sampling = spec, validation_sampling(spec, policy)
        self._num_samples = spec.validation.samples_per_prompt

    def run(self, take: TakePiece | None = None) -> tuple[Scalars, list[dict[str, Any]]]:
        """Accuracy overall and per source; a few rows to look at. take: where ranks lease pieces; rows to look at are
        of the first piece then, whoever has it."""
        pieces = self._pieces() if take is None else self._leased_pieces(take)
        metrics, shown = self._run(pieces, exactly=self._cuts_alike or take is not None)
        if take is not None:
            num_rows = self._piece_size * self._num_samples * self._spec.rows_per_trajectory
            shown = [row for row in shown if row["row_id"] < num_rows]
        return metrics, shown

    def run_part(self, number: int, num_parts: int) -> tuple[Scalars, list[dict[str, Any]]]:
        """Figures of one of so many parts, which are the same whoever has them; rows to look at are of the first."""
        share = range(number, len(self._dataset), num_parts)
        pieces = _cut(share, range(0, max(1, len(share)), self._piece_prompts), self._piece_prompts)
        metrics, shown = self._run(pieces, exactly=True)
        return metrics, shown if number == 0 else []

    def _run(
        self, pieces: Iterable[tuple[np.ndarray, np.ndarray | None]], *, exactly: bool
    ) -> tuple[Scalars, list[dict[str, Any]]]:
        """pieces: ordinals of prompts, and of those that come next, where that is known."""
        started = time.perf_counter()
        metrics, shown = list[Scalars](), list[dict[str, Any]]()
        for piece, after in pieces:
            prompts = self._dataset.fetch(piece)
            if after is not None:
                self._dataset.read_ahead(after)
            batch = self._answered(prompts, piece)
            if self._rewards is not None:
                result, rows = self._judged(self._rewards, batch)
                metrics, shown = [*metrics, result], shown or rows
        seconds = {"time/validation_seconds": mean(time.perf_counter() - started)}
        return merge_all([*metrics, seconds], exactly=exactly), shown

    def _answered(self, prompts: Prompts, piece: Int64) -> Batch:
        """Rows of the answers to some prompts, of which rewards are begun."""
        if self._conversations is not None:
            begin = None if self._rewards is None else self._begin_ends
            played = self._conversations.play(
                prompts, piece, self._sampling, self._num_samples, self._copy, step=None, begin=begin
            )
            return played.batch
        max_tokens = max_tokens_of(self._spec, Column.ragged(prompts.prompt_ids).lengths)
        row_ids = rows_of_groups(piece, self._num_samples)
        asked = asked_batch(prompts, row_ids, piece, self._num_samples)
        begins = None if self._rewards is None else begins_rewards(self._rewards, asked, self._decode)
        responses = generate(
            self._engine,
            prompts.prompt_ids,
            self._sampling,
            row_ids,
            self._num_samples,
            max_tokens,
            begins,
            prompt_pictures(asked),
        )
        return rollout_batch(asked, responses, self._engine.version)

    def _begin_ends(self, ends: Batch) -> None:
        assert self._rewards is not None
        if len(ends):
            names = [name for name in STAGES["Reward"].columns(self._spec, (), False).reads if name in ends]
            shown = ends.select(name for name in names if name not in NOT_OF_REWARD_ROWS)
            self._rewards.begin(reward_rows(shown, self._decode))

    def _pieces(self) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """Ordinals of this rank's prompts, piece by piece, and of the next piece. At least one piece: a rank of no
        prompts says that it has none. With `rollout.leaseRows` pieces are the same for any number of ranks, and ranks
        have them in turn."""
        num_prompts, size = len(self._dataset), self._piece_size
        if not self._cuts_alike:
            share, size = range(self._dp_rank, num_prompts, self._dp_size), self._piece_prompts
            starts = range(0, max(1, len(share)), size)
        else:
            share = range(num_prompts)
            starts = range(self._dp_rank * size, max(1, num_prompts), self._dp_size * size)
            starts = starts or range(num_prompts, num_prompts + 1)
        return _cut(share, starts, size)

    def _leased_pieces(self, take: TakePiece) -> Iterator[tuple[np.ndarray, None]]:
        """Ordinals of the pieces that this rank takes, each once the one before is done, or an empty piece where it
        takes none. Which one comes next is not known."""
        num_prompts, size, has_any = len(self._dataset), self._piece_size, False
        while (piece := take(-(-num_prompts // size))) is not None:
            has_any = True
            yield np.arange(piece * size, min((piece + 1) * size, num_prompts)), None
        if not has_any:
            yield np.empty(0, np.int64), None

    @property
    def _piece_prompts(self) -> int:
        """Prompts that are answered and judged at once."""
        return max(1, PIECE_ROWS // self._num_samples)

    @property
    def _cuts_alike(self) -> bool:
        """Whether pieces are the same for any number of ranks."""
        return self._spec.rollout.lease_rows is not None

    @property
    def _piece_size(self) -> int:
        """Prompts of a piece: of as many rows as the job's leases have, or else one piece for each rank at least."""
        lease_rows = self._spec.rollout.lease_rows
        if lease_rows is not None:
            return -(-min(lease_rows, PIECE_ROWS) // self._num_samples)
        return max(1, min(self._piece_prompts, -(-len(self._dataset) // self._dp_size)))

    def _judged(self, rewards: RewardRunner, batch: Batch) -> tuple[Scalars, list[dict[str, Any]]]:
        """What was right of trajectories whose rewards were begun, and the last rows of the first of them. One that
        failed is not right."""
        trajectories = Trajectories.of(batch.row_ids, self._spec)
        ends = trajectories.ends(batch)
        kept = kept_places(ends)
        result = rewards.collect(ends.row_ids[kept].tolist())
        correct = spread_over(result.rewards[:, 0], kept, len(ends))
        figures = accuracy(correct, ends)
        if self._conversations is not None:
            mask = batch["response_mask"]
            lengths = np.bincount(np.repeat(trajectories.of_row, mask.lengths), mask.values, minlength=len(ends))
            figures["validation/response_length"] = mean_of(lengths)
            figures["validation/failed_fraction"] = mean(len(ends) - len(kept), len(ends))
            result = replace(result, answers={int(kept[at]): said for at, said in result.answers.items()})
        if self._spec.rollout.simulator is not None:
            figures |= _successes(ends)
        batch = ends
        prompt, sample = np.divmod(np.arange(len(batch)), self._num_samples)
        looked_at = np.flatnonzero((prompt < SHOWN_PROMPTS) & (sample < SHOWN_SAMPLES))
        rows = reward_rows(batch.take(looked_at), self._decode)
        shown = [
            {"validation": True, **shown_row(row, self._spec), "reward": float(reward)}
            for row, reward in zip(rows, correct[looked_at], strict=True)
        ]
        with_thumbnails(shown, rows)
        if self._num_samples > 1:
            answers = self._answers(result, batch)
            figures |= of_several(correct, answers, batch.values_of("source"), self._num_samples)
        return figures, shown

    def _answers(self, result: RewardResult, batch: Batch) -> list[str | None]:
        """What the first reward took from each response, and the whole response of which it says nothing: [rows]."""
        responses, said = batch.values_of("response_ids"), result.answers
        return [said[at] if at in said else self._decode(ids).strip() for at, ids in enumerate(responses)]

    def _decode(self, ids: np.ndarray) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))


def _cut(share: range, starts: range, size: int) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    """Pieces of a share that begin at `starts`, and the piece after each."""
    pieces = [np.array(share[first : first + size], np.int64) for first in starts]
    return zip_longest(pieces, pieces[1:])


def _successes(ends: Batch) -> Scalars:
    """Figures of the last rows of episodes; one that failed has not succeeded."""
    tasks = ends.values_of(TASK) if TASK in ends else None
    kept = ends[KEPT].values
    success, at_end = (ends[name].values * kept for name in (SUCCESS, SUCCESS_AT_END))
    return success_figures(success, at_end, tasks)


def accuracy(correct: np.ndarray, batch: Batch) -> Scalars:
    """Mean of the first reward over all rows and over each source's."""
    metrics = {
        "validation/accuracy": mean_of(correct),
        "validation/response_length": mean_of(batch["response_ids"].lengths),
    }
    return metrics | means_by_source("validation/accuracy", correct, batch.values_of("source"))


def of_several(correct: Rewards, answers: Sequence[str | None], sources: Sequence[str], num_samples: int) -> Scalars:
    """pass@k and maj@k of prompts with `num_samples` rows each, overall and per source; a row whose first reward is 1
    or more is right. answers: of each row, None where it has none."""
    right = correct.reshape(-1, num_samples) >= 1
    result = {f"pass@{k}": pass_at_k(right, k) for k in sizes(num_samples)}
    result |= {f"maj@{k}": maj_at_k(right, answers, k) for k in sizes(num_samples) if k > 1}
    metrics = Scalars()
    for name, values in result.items():
        metrics[f"validation/{name}"] = mean_of(values)
        metrics |= means_by_source(f"validation/{name}", values, sources[::num_samples])
    return metrics
