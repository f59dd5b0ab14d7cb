"""An engine that decodes what a test says, a renderer of letters, and a world that is only a function."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from threading import Event
from types import SimpleNamespace
from typing import Any

import numpy as np

from rljob_worker.batch import Column
from rljob_worker.conversations.messages import AssistantMessage
from rljob_worker.conversations.playing.loop import Conversations
from rljob_worker.conversations.playing.plays import Play
from rljob_worker.conversations.policy import Agent, Bounds
from rljob_worker.conversations.task import Task
from rljob_worker.conversations.trajectory import Trajectory
from rljob_worker.conversations.world import SharedWorld
from rljob_worker.engines.rollout.requests import EndedRequests, Ending, Load, PartialResponses, Requests, Sampling
from rljob_worker.errors import BadData
from rljob_worker.sandbox.targets import Answer
from rljob_worker.stages.stage import Alone

END = 0
"""The token that ends a turn; a letter is its code, and `~` is written for the end."""


def ids(text: str) -> np.ndarray:
    return np.array([END if letter == "~" else ord(letter) for letter in text], np.int64)


def text(tokens: Any) -> str:
    return "".join("~" if token == END else chr(token) for token in tokens)


class LetterRenderer:
    """`[u:hello][a:` opens a conversation, and `]` or `~]` ends what was said. keeps: whether what was said stays as it
    was; without, a later turn leaves out all that an assistant said before."""

    def __init__(self, *, keeps: bool = True) -> None:
        self.keeps = keeps

    def opening(self, messages, tools=None):
        shown = "".join(f"<{tool}>" for tool in tools or ())
        for message in messages:
            if self.keeps or message["role"] != "assistant":
                shown += f"[{message['role'][0]}:{message['content']}]"
        return ids(shown + "[a:")

    def following(self, before, new, tools=None, *, is_closed=True):
        if not self.keeps:
            return None
        said = "".join(f"[{message['role'][0]}:{message['content']}]" for message in new)
        return ids(("" if is_closed else "~") + "]" + said + "[a:")

    def parse(self, token_ids, *, turn=0, tools=None):
        said = text(token_ids)
        is_closed = said.endswith("~")
        return AssistantMessage(said.removesuffix("~"), finish_reason="Stop" if is_closed else "Length")

    def begin_turn(self):
        return SimpleNamespace(read=lambda token_ids: ("", text(token_ids).removesuffix("~")))

    def require_tokens(self, token_ids, begin=0):
        """Every code is a letter."""

    def texts_of(self, token_ids):
        return [letter.encode() for letter in text(token_ids)]


Says = Callable[[int, int, str], str]
"""(row_id, turn, text before) -> what is sampled, with `~` where it ends."""


class SteppingEngine:
    """A RolloutEngine that decodes a token of every request in a step; log-probs are minus a hundredth of the token.

    order: in which those that end in one step come."""

    def __init__(self, answer: Says, order: np.random.Generator | None = None) -> None:
        self.answer, self.order, self.version, self.num_steps = answer, order, 3, 0
        self.submitted: list[Requests] = []
        self.prompts: dict[tuple[int, int], str] = {}
        self.held: set[int] = set()
        self.aborted: list[int] = []
        self._running: dict[int, tuple[int, np.ndarray, np.ndarray]] = {}
        """By row: turn, tokens, and versions of those that the turn had already."""
        self._woken = Event()
        self.fails_at: int | None = None

    def submit(self, requests: Requests) -> None:
        self.submitted.append(requests)
        entries = zip(requests.row_ids, requests.turns, requests.prompt_of, requests.max_tokens, strict=True)
        for at, (row_id, turn, prompt, most) in enumerate(tuple(map(int, entry)) for entry in entries):
            assert row_id not in self._running, "a row has one request at a time"
            before = text(requests.prompts.row(prompt))
            self.prompts[row_id, turn] = before
            tokens, old = ids(self.answer(row_id, turn, before))[:most], np.empty(0, np.int64)
            if requests.begun is not None:
                begun, old = requests.begun.response_ids.row(at), requests.begun.token_versions.row(at)
                assert begun.tolist() == tokens[: len(begun)].tolist() and len(begun) < most
            self._running[row_id] = (turn, tokens, old)

    def advance(self, most_steps: int | None = None) -> EndedRequests:
        ended: list[tuple[int, int, np.ndarray, np.ndarray]] = []
        while self._running and not ended:
            self.num_steps += 1
            if self.fails_at is not None and self.num_steps >= self.fails_at:
                raise BadData("row 1: its logits are not finite")
            for row_id, (turn, tokens, old) in list(self._running.items()):
                steps = self.num_steps % max(1, len(tokens)) if self.order is None else self.order.integers(3)
                if steps == 0:
                    ended.append((row_id, turn, tokens, old))
                    del self._running[row_id]
            if self._woken.is_set():
                break
        self._woken.clear()
        if self.order is not None:
            self.order.shuffle(ended)
        return self._table(ended)

    def _table(self, ended: list[tuple[int, int, np.ndarray, np.ndarray]]) -> EndedRequests:
        tokens = Column.ragged([item[2] for item in ended])
        versions = [np.append(old, np.full(len(tokens) - len(old), self.version)) for _, _, tokens, old in ended]
        endings = [Ending.END_TOKEN if text(item[2]).endswith("~") else Ending.LENGTH for item in ended]
        return EndedRequests(
            np.array([item[0] for item in ended], np.int64),
            np.array([item[1] for item in ended], np.int64),
            tokens,
            Column.from_lengths((-tokens.values / 100).astype(np.float32), tokens.lengths),
            Column.ragged(versions),
            np.array(endings, np.int8),
        )

    def peek(self, row_ids: np.ndarray) -> PartialResponses:
        """All but the last token, as if it were the next."""
        tokens = Column.ragged([self._running[row][1][:-1] for row in row_ids.tolist()])
        return PartialResponses(tokens, tokens, tokens)

    def wake(self) -> None:
        self._woken.set()

    def abort(self, row_ids: np.ndarray) -> EndedRequests:
        self.aborted += row_ids.tolist()
        for row_id in row_ids.tolist():
            self._running.pop(row_id, None)
        return self._table([])

    def hold(self, row_ids: np.ndarray) -> None:
        self.held |= set(row_ids.tolist())

    def release(self, row_ids: np.ndarray) -> None:
        self.held -= set(row_ids.tolist())

    @property
    def load(self) -> Load:
        return Load(len(self._running), 0, 0, 0)


class FunctionWorld:
    """Answers with a function of (session, target, method, arguments). delays: how often others come first."""

    def __init__(self, function: Callable[..., Any], delays: np.random.Generator | None = None) -> None:
        self.function, self.delays = function, delays
        self.calls: list[tuple[str, str, str | None, Mapping[str, Any], str]] = []
        self.ended: list[str] = []

    async def call(self, session, target, method, arguments, key=""):
        self.calls.append((session, target, method, arguments, key))
        for _ in range(0 if self.delays is None else int(self.delays.integers(5))):
            await asyncio.sleep(0)
        value = self.function(session, target, method, arguments)
        return value if isinstance(value, Answer) else Answer(value, None, 0.25)

    async def end(self, session):
        self.ended.append(session)

    async def close(self):
        """There are no processes."""


BOUNDS = Bounds(turns=8, rows=1, response_tokens=200, row_tokens=250)
SAMPLING = Sampling(seed=5)


def tasks_of(*prompts: str, group_size: int = 1, columns: Mapping[str, str] | None = None) -> list[Task]:
    """One group a prompt."""
    groups = (
        Task.of_group(
            [{"role": "user", "content": prompt}],
            ids(prompt),
            dict(columns or {}),
            job_seed=7,
            group=group,
            group_size=group_size,
        )
        for group, prompt in enumerate(prompts)
    )
    return [task for group in groups for task in group]


def play(
    run: Callable[..., Awaitable[None]],
    tasks: list[Task],
    engine: Any,
    *,
    bounds: Bounds = BOUNDS,
    renderer: Any = None,
    caller: Any = None,
    shared: SharedWorld | None = None,
    concurrency: int = 64,
    agents: Sequence[Agent] = (),
    **options: Any,
) -> list[Trajectory]:
    """What these tasks become."""
    renderer = LetterRenderer() if renderer is None else renderer
    conversations = Conversations(
        engine, run, renderer, bounds, concurrency=concurrency, shared=shared, caller=caller, agents=agents
    )
    try:
        rows = bounds.rows * max(1, len(agents))
        return conversations.play(Play(tasks, SAMPLING, "step-1", rows_per_trajectory=rows, **options), Alone())
    finally:
        conversations.close()


def content(trajectory: Trajectory) -> Any:
    """All that is learnt from."""
    rows = [
        (text(row.prompt), text(row.response_ids), row.mask.tolist(), row.log_probs.tolist(), row.turn_ids.tolist())
        for row in trajectory.rows
    ]
    ends = (trajectory.truncated, trajectory.failed, trajectory.environment_reward, trajectory.num_turns)
    return rows, ends, sorted(trajectory.metrics), trajectory.messages
