"""The turns of one trajectory: recorded ones come from its journal, others from the engine, in rounds where there are
some.

In a round of `rollout.partial` a trajectory samples at most `tokensPerRound` tokens. A turn that has had them rests,
with its run function in the event loop, and goes on in a later round behind its tokens:

    tokensPerRound 4    round 1   turn 0 ends with 3 tokens, turn 1 has 1
                        round 2   turn 1 goes on from its 1 token, and ends with 3; turn 2 has 2
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from rljob_worker.conversations.journal.records import Record, RecordedTurn, TurnState
from rljob_worker.conversations.journal.replay import DoesNotReplay, Entries, Journal
from rljob_worker.conversations.policy import ConversationOver, TurnRequest
from rljob_worker.conversations.task import Task
from rljob_worker.conversations.trajectory import Sampled, Trajectory
from rljob_worker.engines.rollout.requests import Ending
from rljob_worker.errors import InvalidJob

NOTHING = Sampled(np.empty(0, np.int64), np.empty(0, np.float32), np.empty(0, np.int64), Ending.LENGTH)


@dataclass(frozen=True, slots=True)
class CarriedTrajectory:
    """What a checkpoint has of a trajectory whose group was not complete."""

    record: Record
    failure: tuple[str, str] | None = None
    """Cause and words, of one that is over and failed."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """What a round of `rollout.partial` is, for the trajectories that are played in it."""

    tokens: int
    """That each may sample."""
    begun_in: Mapping[int, int]
    """The step in which each group began, by group: of those under way, and those that begin."""
    last: frozenset[int] = frozenset()
    """Groups for which there is no further round."""
    carried: Mapping[tuple[int, int], CarriedTrajectory] = field(default_factory=dict)
    """Trajectories of a checkpoint, by number and attempt at their group."""
    begins_step: bool = True
    """Whether it is the first round of its step."""


@dataclass(slots=True)
class RoundTokens:
    """What a trajectory may sample yet in a round."""

    left: float = math.inf
    used: int = 0
    is_last: bool = False
    """Whether there is no further round for it."""

    def use(self, number: int) -> None:
        """So many were sampled."""
        self.left -= number
        self.used += number


Generate = Callable[[Task, TurnRequest, Sampled, int], Awaitable[Sampled]]
"""Has the engine go on with a turn behind what it has, up to so many tokens with it."""


class Turns:
    """Samples the turns of one trajectory."""

    def __init__(
        self,
        task: Task,
        journal: Journal,
        generate: Generate,
        version: Callable[[], int],
        rests: Callable[[Turns], None],
        *,
        is_shown: bool = False,
    ) -> None:
        """version: of the engine's weights. rests: called once nothing of the trajectory goes on until `go_on`.
        is_shown: as of `Trajectory`."""
        self.task, self.journal, self.trajectory = task, journal, Trajectory(task, is_shown=is_shown)
        self.failure: tuple[str, str] | None = None
        """Why it failed in an earlier step, of one that is over."""
        self.is_given_up = False
        """Whether its play has ended before it."""
        self.tokens = RoundTokens()
        self._generate, self._version, self._rests = generate, version, rests
        self._num_awaited = 0
        self._rested_at = (0, 0)
        """The turn that rests, and how many tokens it has."""
        self._resting: asyncio.Future[None] | None = None

    @property
    def is_resting(self) -> bool:
        """Whether it waits for another round."""
        return self._resting is not None

    @property
    def is_idle(self) -> bool:
        """Whether its run function waits for neither a turn nor a call."""
        return not self._num_awaited and not self.trajectory.num_calls_under_way

    def begin_step(self, record: Record | None, entries: Entries | None) -> None:
        """What `go_on` goes on with is of another step. record: of an earlier attempt at it."""
        self.journal.begin_step(record, entries, *self._rested_at)

    def go_on(self) -> None:
        """Another round has begun."""
        assert self._resting is not None
        resting, self._resting = self._resting, None
        resting.set_result(None)

    async def sample(self, request: TurnRequest) -> Sampled:
        """One turn. Raises ConversationOver where it has none, as the trajectory may not go on; DoesNotReplay;
        InvalidJob for turns at once in a round."""
        if self._num_awaited and math.isfinite(self.tokens.left):
            raise InvalidJob("rollout.partial: a trajectory samples its turns one after another, not several at once")
        self._num_awaited += 1
        try:
            return await self._sample(request)
        finally:
            self._num_awaited -= 1

    async def _sample(self, request: TurnRequest) -> Sampled:
        part, known = NOTHING, self._recorded(request)
        while True:
            is_whole = False
            if known is not None:
                part = self._taken(part, known)
                is_whole = len(part) == len(known.sampled) and not known.is_paused
            elif self.tokens.left >= 1:
                part, is_whole = await self._sampled_further(request, part)
            if is_whole:
                return self._cut(part) if known is not None and known.is_cut else part
            if self.tokens.left < 1 and self.tokens.is_last:
                self._write(request, part, "cut")
                return self._cut(part)
            if self.tokens.left < 1:
                await self._rest(request.turn, len(part))
            if known is None or len(part) == len(known.sampled):
                known = self._recorded(request)

    def _recorded(self, request: TurnRequest) -> RecordedTurn | None:
        known = self.journal.sampled(request.turn, request.digest, self._version(), request.top_log_probs)
        if known is None or not request.top_log_probs:
            return known
        top = known.sampled.top_log_probs
        if top is None or top.tokens.shape[1] < request.top_log_probs:
            number = 0 if top is None else top.tokens.shape[1]
            asked = f"turn {request.turn} asks for {request.top_log_probs} top_logprobs"
            raise DoesNotReplay(f"{asked}, and it is recorded with {number}")
        return known

    def _taken(self, part: Sampled, known: RecordedTurn) -> Sampled:
        """As much of what is recorded as the round allows."""
        had = max(len(part), known.num_carried)
        end = int(min(len(known.sampled), had + self.tokens.left))
        self.tokens.use(end - had)
        return first_tokens(known.sampled, end)

    async def _sampled_further(self, request: TurnRequest, part: Sampled) -> tuple[Sampled, bool]:
        """The turn behind what it has, to its end or as far as the round allows; and whether that is its end."""
        most = int(min(request.max_tokens, len(part) + self.tokens.left))
        longer = await self._generate(self.task, request, part, most)
        if part.top_log_probs is not None and longer.top_log_probs is not None:
            longer = replace(longer, top_log_probs=part.top_log_probs.then(longer.top_log_probs))
        self.tokens.use(len(longer) - len(part))
        is_whole = longer.ending != Ending.LENGTH or most == request.max_tokens or len(longer) < most
        if is_whole or not self.tokens.is_last:
            self._write(request, longer, "whole" if is_whole else "paused")
        return longer, is_whole

    def _write(self, request: TurnRequest, part: Sampled, how: TurnState) -> None:
        self.journal.write_sample(request.turn, request.digest, part, how)

    def _cut(self, part: Sampled) -> Sampled:
        """The trajectory ends with what there is of a turn."""
        self.trajectory.truncated = self.trajectory.is_cut_off = True
        if not len(part):
            raise ConversationOver
        return part

    async def _rest(self, turn: int, num_tokens: int) -> None:
        """Wait for another round. Calls under way are waited for before."""
        self._rested_at = (turn, num_tokens)
        self._resting = asyncio.get_running_loop().create_future()
        self.trajectory.when_quiet(lambda: self._rests(self))
        await self._resting


def first_tokens(sampled: Sampled, number: int) -> Sampled:
    """The first tokens of a turn, after which it went on; all of it as it is."""
    if number == len(sampled):
        return sampled
    tokens, log_probs, versions = sampled.tokens[:number], sampled.log_probs[:number], sampled.versions[:number]
    top = None if sampled.top_log_probs is None else sampled.top_log_probs.first(number)
    return Sampled(tokens, log_probs, versions, Ending.LENGTH, top)
