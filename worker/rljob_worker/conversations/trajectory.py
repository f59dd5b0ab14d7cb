"""A trajectory while it is played: rows of tokens, of which the policy sampled some and the world wrote the others."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rljob_worker.batch import Indices
from rljob_worker.conversations.messages import Message
from rljob_worker.conversations.task import Task
from rljob_worker.engines.rollout.requests import TopLogProbs
from rljob_worker.vision.pictures import picture_digest

WORLD = -1
"""The turn of a token that nobody sampled."""
DIGEST_BYTES = 8
"""Bytes of a digest that tells recorded tokens and calls from all others."""


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """What the policy sampled in one turn; all [tokens]."""

    tokens: Indices
    """int64."""
    log_probs: NDArray[np.float32]
    versions: Indices
    """int64, of the weights that each was sampled from."""
    ending: int
    """How it ended, of `requests.Ending`."""
    top_log_probs: TopLogProbs | None = None
    """Likely tokens beside these, where they were asked for."""

    def __len__(self) -> int:
        return len(self.tokens)


class TokenRow:
    """A prompt and what came behind it. A turn costs what it adds, however long the row is."""

    def __init__(
        self,
        prompt: Indices,
        pictures: Sequence[bytes] = (),
        *,
        state: NDArray[np.float32] | None = None,
        agent: int = 0,
    ) -> None:
        """prompt: int64 [tokens], at least one.   pictures: what it shows, encoded.   state: [numbers], what a
        simulator measured before the decision that the row is.   agent: who acts in it, by its place in the job."""
        self.state, self.agent = state, agent
        self.place = 0
        """Its number for the engine, among those that the trajectory's rows may have."""
        self.num_actions: int | None = None
        """Sampled tokens that were acted on, of a decision of which only the first were; None: all."""
        self.prompt, self.pictures = prompt, list(pictures)
        """Encoded, in the order of their tokens; what comes behind the prompt adds to them. Tokens of pictures come
        before those that look like them and were sampled."""
        self._tokens = np.array(prompt, np.int64)
        """The row, and room behind it."""
        self._length = len(prompt)
        self._parts: list[tuple[int, int, Sampled | None]] = []
        """What came behind the prompt: how many tokens, their turn, and what was sampled."""
        self._hash, self._num_hashed = hashlib.blake2b(digest_size=DIGEST_BYTES), 0
        self._digests = list(map(picture_digest, pictures))
        if state is not None:
            self._hash.update(state.tobytes())

    def add_world(self, tokens: Indices, pictures: Sequence[bytes] = ()) -> None:
        """Tokens that nobody sampled, and the pictures that they show."""
        self._append(tokens, WORLD, None)
        self.pictures += pictures
        self._digests += map(picture_digest, pictures)

    def add_sampled(self, sampled: Sampled, turn: int) -> None:
        """A turn of the policy."""
        self._append(sampled.tokens, turn, sampled)

    def _append(self, tokens: Indices, turn: int, sampled: Sampled | None) -> None:
        if not len(tokens):
            return
        end = self._length + len(tokens)
        if end > len(self._tokens):
            grown = np.empty(max(end, 2 * len(self._tokens)), np.int64)
            grown[: self._length] = self._tokens[: self._length]
            self._tokens = grown
        self._tokens[self._length : end] = tokens
        self._parts.append((len(tokens), turn, sampled))
        self._length = end

    def __len__(self) -> int:
        return self._length

    def sequence(self) -> Indices:
        """int64 [tokens] of prompt and response: what the next token follows. Read-only; stays as it is."""
        view = self._tokens[: self._length]
        view.flags.writeable = False
        return view

    def digest(self, added: Indices | None = None, pictures: Sequence[bytes] = ()) -> str:
        """A digest of state, `sequence` and tokens behind it, and of all their pictures, in 16 hexadecimal digits."""
        self._hash.update(self._tokens[self._num_hashed : self._length].data)
        self._num_hashed = self._length
        whole = self._hash.copy()
        if added is not None:
            whole.update(np.ascontiguousarray(added, np.int64).data)
        whole.update(b"".join([*self._digests, *map(picture_digest, pictures)]))
        return whole.hexdigest()

    @property
    def num_response_tokens(self) -> int:
        """Tokens behind the prompt."""
        return self._length - len(self.prompt)

    @property
    def num_sampled(self) -> int:
        """Tokens that the policy sampled."""
        return sum(length for length, _, sampled in self._parts if sampled is not None)

    @property
    def last_sampled(self) -> Sampled | None:
        """What the policy sampled last; None where that was nothing."""
        return self._parts[-1][2] if self._parts else None

    @property
    def response_ids(self) -> Indices:
        """int64 [response]."""
        return self.sequence()[len(self.prompt) :]

    @property
    def turn_ids(self) -> Indices:
        """int64 [response]: the turn of each token, that before it for the world's; 0 for the world's before the
        first."""
        turns, last = [np.empty(0, np.int64)], 0
        for length, turn, _ in self._parts:
            last = last if turn == WORLD else turn
            turns.append(np.full(length, last, np.int64))
        return np.concatenate(turns)

    @property
    def mask(self) -> NDArray[np.uint8]:
        """[response]: 1 where the policy sampled the token, and it was acted on."""
        parts = (np.full(length, sampled is not None, np.uint8) for length, _, sampled in self._parts)
        mask = np.concatenate([np.empty(0, np.uint8), *parts])
        if self.num_actions is not None:
            mask[self.num_actions :] = 0
        return mask

    @property
    def log_probs(self) -> NDArray[np.float32]:
        """[response]: of the sampled tokens; 0 of the world's."""
        parts = (
            np.zeros(length, np.float32) if sampled is None else sampled.log_probs for length, _, sampled in self._parts
        )
        return np.concatenate([np.empty(0, np.float32), *parts])

    def versions(self, first: int) -> Indices:
        """int64 [response]: of the sampled tokens; of the world's that of the token before, `first` where there is
        none."""
        result = [np.empty(0, np.int64)]
        known = next((int(sampled.versions[0]) for _, _, sampled in self._parts if sampled is not None), first)
        for length, _, sampled in self._parts:
            result.append(np.full(length, known, np.int64) if sampled is None else sampled.versions)
            known = int(result[-1][-1])
        return np.concatenate(result)

    def turn_ends(self) -> dict[int, int]:
        """By turn, the place in the response of its last sampled token."""
        ends, at = dict[int, int](), 0
        for length, turn, sampled in self._parts:
            at += length
            if sampled is not None:
                ends[turn] = at - 1 if self.num_actions is None else max(0, self.num_actions - 1)
        return ends


def _nothing() -> None: ...


@dataclass(slots=True, eq=False)
class Trajectory:
    """All that is known of one while it is played, and when it is over."""

    task: Task
    rows: list[TokenRow] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    """For a person to read; what an agent of a team said has its name, as `agent`."""
    num_turns: int = 0
    """Turns that were sampled."""
    num_started: int = 0
    """Turns that were begun, which numbers them."""
    is_busy: bool = False
    """Whether a policy is asked for a turn, of those that come one after another."""
    truncated: bool = False
    """A turn was cut off, or there was no room for one that was wanted."""
    is_cut_off: bool = False
    """It had to end in the last round that it may have."""
    failed: str | None = None
    """The cause, where it failed."""
    message: str = ""
    """Words on the failure."""
    rewards: list[tuple[int | None, float]] = field(default_factory=list)
    """What the world gave, each with its turn; None for the last turn there is at the end."""
    metrics: list[tuple[str, float]] = field(default_factory=list)
    embedding: NDArray[np.float32] | None = None
    """[numbers]: what an encoder made of its video; None where there is none."""
    columns: dict[str, int] = field(default_factory=dict)
    """What its run function says of it as a whole, on each of its rows."""
    is_shown: bool = False
    """Whether a person will read of it."""
    shown: dict[str, Any] = field(default_factory=dict)
    """What a person is shown of it besides, as JSON has it."""
    num_calls: int = 0
    num_call_errors: int = 0
    call_seconds: float = 0.0
    is_replayed: bool = False
    """Whether some of it came from a journal."""
    num_calls_under_way: int = 0
    _when_quiet: Callable[[], None] = _nothing

    @property
    def num_sampled(self) -> int:
        """Tokens that the policy sampled, in all rows."""
        return sum(row.num_sampled for row in self.rows)

    @property
    def num_world_tokens(self) -> int:
        """Tokens behind prompts that the world wrote, in all rows."""
        return sum(row.num_response_tokens for row in self.rows) - self.num_sampled

    @property
    def environment_reward(self) -> float:
        """The sum of the world's rewards."""
        return math.fsum(reward for _, reward in self.rewards)

    @contextmanager
    def call_under_way(self) -> Iterator[None]:
        """While the world is called."""
        self.num_calls_under_way += 1
        try:
            yield
        finally:
            self.num_calls_under_way -= 1
            if not self.num_calls_under_way:
                called, self._when_quiet = self._when_quiet, _nothing
                called()

    def when_quiet(self, called: Callable[[], None]) -> None:
        """Call a function once no call of the world is under way."""
        self._when_quiet = called
        if not self.num_calls_under_way:
            self._when_quiet = _nothing
            called()

    def fail(self, cause: str, message: str) -> None:
        """It counts for nothing any more; the first cause stands."""
        if self.failed is None:
            self.failed, self.message = cause, message


def turn_rewards(trajectory: Trajectory) -> list[NDArray[np.float64]]:
    """For each row, [response]: the world's rewards at the last tokens of the turns that they are of; of a turn without
    a token, at the last one before it."""
    ends = [row.turn_ends() for row in trajectory.rows]
    values = [np.zeros(row.num_response_tokens) for row in trajectory.rows]
    place = {turn: (at, end) for at, of_row in enumerate(ends) for turn, end in of_row.items()}
    turns = sorted(place)
    for turn, reward in trajectory.rewards:
        earlier = [item for item in turns if turn is None or item <= turn] or turns[:1]
        if earlier:
            at, end = place[earlier[-1]]
            values[at][end] += reward
    return values


def agent_rewards(trajectory: Trajectory, num_agents: int) -> list[float]:
    """The sum of the world's rewards for the turns of each agent; of a turn that nobody took, for the last one before
    it: [num_agents]."""
    agents = {turn: row.agent for row in trajectory.rows for turn in row.turn_ends()}
    sums, turns = [0.0] * num_agents, sorted(agents)
    for turn, reward in trajectory.rewards:
        earlier = [item for item in turns if turn is None or item <= turn] or turns[:1]
        if earlier:
            sums[agents[earlier[-1]]] += reward
    return sums


def failures(trajectories: Sequence[Trajectory]) -> dict[str, int]:
    """How many failed, by cause."""
    causes: dict[str, int] = {}
    for trajectory in trajectories:
        if trajectory.failed is not None:
            causes[trajectory.failed] = causes.get(trajectory.failed, 0) + 1
    return causes
