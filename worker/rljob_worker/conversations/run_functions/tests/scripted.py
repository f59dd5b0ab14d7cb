"""A policy that says what a test has written, with a real chat template, and tools that are functions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rljob_worker.conversations.journal.replay import Journal
from rljob_worker.conversations.playing.one_trajectory import Run, ended_by_itself
from rljob_worker.conversations.policy import Bounds, Policy, TurnRequest
from rljob_worker.conversations.rendering.chat_renderer import ChatRenderer
from rljob_worker.conversations.rendering.tests import chat_models
from rljob_worker.conversations.rendering.tests.chat_models import tokenizer_with
from rljob_worker.conversations.task import Task
from rljob_worker.conversations.trajectory import Sampled, Trajectory
from rljob_worker.conversations.world import SharedWorld, TrajectoryFailed, World
from rljob_worker.engines.rollout.requests import Ending
from rljob_worker.sandbox.targets import Answer, CallError
from rljob_worker.vision.processing import PictureProcessor

BOUNDS = Bounds(turns=8, rows=1, response_tokens=4000, row_tokens=8000)
PROMPT = {"role": "user", "content": "go"}


def a_task(*messages: dict[str, Any], seed: int = 7, **columns: str) -> Task:
    prompt = np.array([1, 2, 3], np.int64)
    return Task(tuple(messages), prompt, columns, seed=seed, group=0, member=0, trajectory=0)


@dataclass
class FunctionCaller:
    """Calls functions of (method, arguments); a CallError that one returns is the answer's."""

    functions: Mapping[str, Callable[..., Any]]

    async def call(
        self, session: str, target: str, method: str | None, arguments: Mapping[str, Any], key: str = ""
    ) -> Answer:
        result = self.functions[target](method, dict(arguments))
        if isinstance(result, Awaitable):
            result = await result
        failed = isinstance(result, CallError)
        return Answer(None if failed else result, result if failed else None, 0.5)

    async def end(self, session: str) -> None:
        pass


def played(
    run: Run,
    texts: Sequence[str],
    *,
    task: Task | None = None,
    shared: SharedWorld | None = None,
    functions: Mapping[str, Callable[..., Any]] | None = None,
    template: str = chat_models.QWEN,
    bounds: Bounds = BOUNDS,
    pictures: PictureProcessor | None = None,
) -> Trajectory:
    """The trajectory in which the policy says these texts, each up to the end of a turn. pictures: of a model that
    sees."""
    tokenizer, turns = tokenizer_with(template), list(texts)

    async def generate(request: TurnRequest) -> Sampled:
        ids = [*tokenizer.encode(turns.pop(0), add_special_tokens=False), tokenizer.eos_token_id]
        tokens = np.array(ids, np.int64)[: request.max_tokens]
        ending = Ending.LENGTH if len(tokens) < len(ids) else Ending.END_TOKEN
        return Sampled(tokens, np.zeros(len(tokens), np.float32), np.zeros(len(tokens), np.int64), ending)

    async def play() -> Trajectory:
        chosen = task or a_task(PROMPT)
        trajectory = Trajectory(chosen)
        journal = Journal(0, 0, None, None)
        try:
            world = World(
                trajectory, shared or SharedWorld(), FunctionCaller(functions or {}), journal, "session", bounds.turns
            )
            policy = Policy(trajectory, ChatRenderer(tokenizer, pictures=pictures), bounds, generate)
            await ended_by_itself(run(chosen, policy, world))
        except TrajectoryFailed as error:
            trajectory.fail(error.cause, str(error))
        return trajectory

    return asyncio.run(play())


def shown(trajectory: Trajectory, template: str = chat_models.QWEN) -> str:
    """All that the policy saw and said in the first row, as text."""
    return str(tokenizer_with(template).decode(trajectory.rows[0].sequence()))
