"""A rollout engine on `Slots`, responses of log-normal lengths, and the stage that generates with them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from long_tail.slots import Int64, Slots
from rljob_api.tests.builders import make_plan
from rljob_worker.batch import Column
from rljob_worker.data.dataset import Prompts
from rljob_worker.engines.rollout.requests import EndedRequests, Ending, Requests
from rljob_worker.stages import build_stage
from rljob_worker.stages.stage import Resources, Stage, StageContext

MEDIAN = 96
"""Tokens of the median response."""
LONGEST = 16 * MEDIAN
SIGMA = 1.0
"""Standard deviation of the logarithm of a length."""
GROUP_SIZE = 8


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long the response of a row is: a function of seed and row_id, whoever decodes it and whenever."""

    seed: int

    def of(self, row_ids: Int64) -> Int64:
        """Tokens, [rows]."""
        normal = [np.random.default_rng([self.seed, int(row_id)]).standard_normal() for row_id in row_ids]
        lengths: Int64 = np.ceil(MEDIAN * np.exp(SIGMA * np.array(normal))).astype(np.int64)
        return np.clip(lengths, 1, LONGEST)

    def of_groups(self, numbers: Int64) -> Int64:
        """Tokens of all rows of groups, [groups]."""
        rows = numbers[:, None] * GROUP_SIZE + np.arange(GROUP_SIZE)
        return self.of(rows.reshape(-1)).reshape(rows.shape).sum(1)


@dataclass(slots=True)
class TimedEngine:
    """A RolloutEngine whose tokens are the row_id. A response that has its length ends with it."""

    lengths: Lengths
    slots: Slots
    version: int = 0
    _waiting: list[Requests] = field(default_factory=list)

    def submit(self, requests: Requests) -> None:
        self._waiting.append(requests)

    def advance(self, most_steps: int | None = None) -> EndedRequests:
        """Until all have ended: the stage does nothing before that."""
        requests = self._waiting.pop()
        lengths = self.lengths.of(requests.row_ids)
        tokens = np.minimum(lengths, requests.max_tokens)
        begun = np.zeros_like(tokens) if requests.begun is None else requests.begun.response_ids.lengths
        for _ in self.slots.decode(tokens - begun, begun + requests.prompts.lengths[requests.prompt_of]):
            pass
        versions = np.full(int(tokens.sum()), self.version, np.int64)
        if requests.begun is not None:
            is_begun = np.arange(len(versions)) - np.repeat(np.cumsum(tokens) - tokens, tokens) < np.repeat(
                begun, tokens
            )
            versions[is_begun] = requests.begun.token_versions.values
        return EndedRequests(
            requests.row_ids,
            requests.turns,
            Column.from_lengths(np.repeat(requests.row_ids, tokens), tokens),
            Column.from_lengths(np.full(len(versions), -1.0, np.float32), tokens),
            Column.from_lengths(versions, tokens),
            np.where(tokens < lengths, Ending.LENGTH, Ending.END_TOKEN).astype(np.int8),
        )

    def abort(self, row_ids: Int64) -> EndedRequests:
        raise NotImplementedError

    def load_weights(self, weights: Iterable[tuple[str, Any]], version: int, *, lasting: bool = False) -> None:
        self.version = version


class NumberedPrompts:
    """A dataset without an end whose prompts are one token, their number."""

    num_filtered = 0

    def read_ahead(self, ordinals: Int64) -> None:
        """Nothing is read."""

    def fetch(self, ordinals: Int64) -> Prompts:
        texts = Column.strings("" for _ in ordinals)
        return Prompts([np.array([number]) for number in ordinals], [], {"answer": texts}, texts)


def carries_of(quantum: int) -> int:
    """`maxCarries` with which no response is cut off: every step has a round for it."""
    return -(-LONGEST // quantum)


def generating_stage(engine: TimedEngine, batch_size: int, quantum: int | None) -> tuple[Stage, StageContext]:
    """The stage of a colocated job that generates, and the context of its steps. quantum: `tokensPerRound`, None for a
    job without `rollout.partial`."""
    settings = [
        f"algorithm={{name: GRPO, groupSize: {GROUP_SIZE}}}",
        f"data.batchSize={batch_size}",
        f"rollout.maxResponseTokens={LONGEST}",
        "stop.steps=100000",
    ]
    if quantum is not None:
        settings.append(f"rollout.partial={{tokensPerRound: {quantum}, maxCarries: {carries_of(quantum)}}}")
    plan = make_plan(*settings)
    resources = Resources(plan, {}, {"actor": engine}, datasets={"actor": NumberedPrompts()})
    context = StageContext(1, 0, plan.spec, lambda ids: "", lambda values: values, dp_rank=0, dp_size=1)
    return build_stage(plan.stages[0], resources), context
