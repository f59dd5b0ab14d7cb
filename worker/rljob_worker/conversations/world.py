"""The world as a conversation sees it: tools and environments that answer, rewards, figures, failure."""

from __future__ import annotations

import base64
import json
import math
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from rljob_api.v1alpha1 import ConversationSpec
from rljob_worker.conversations.journal.records import RecordedAnswer, is_alike, recorded_of, replayed
from rljob_worker.conversations.journal.replay import DoesNotReplay, Journal
from rljob_worker.conversations.messages import Schema
from rljob_worker.conversations.trajectory import Trajectory
from rljob_worker.sandbox.calls.loading import ENCODED_PICTURES
from rljob_worker.sandbox.targets import Answer

if TYPE_CHECKING:
    from rljob_worker.conversations.agents.programs import ProgramEnd
    from rljob_worker.conversations.branches import Branches
    from rljob_worker.conversations.policy import Policy
    from rljob_worker.conversations.task import Task

Value = TypeVar("Value")

MOST_CALLS = 10_000
"""Calls that a trajectory may make without a turn of the policy between them."""

_NOT_OF_A_NAME = re.compile(r"[^a-z0-9_]+")
_LONGEST_NAME = 48


class TargetCaller(Protocol):
    """What calls tools and environments, in processes of their own (`sandbox`)."""

    async def call(
        self, session: str, target: str, method: str | None, arguments: Mapping[str, Any], key: str = ""
    ) -> Answer:
        """The answer; errors are answers."""
        ...

    async def end(self, session: str) -> None:
        """The session's objects go."""
        ...

    async def close(self) -> None:
        """Its processes and connections go."""
        ...


@dataclass(frozen=True, slots=True)
class ToolHandle:
    """A tool that the model may be shown."""

    schema: Schema
    target: str
    """What is called."""
    method: str | None = None
    answers_limits: bool = True
    """Whether the model reads of a call that took too long or too much memory, and goes on; it costs the trajectory
    otherwise."""
    sees: bool = False
    """Whether it is given the pictures of the prompt."""


class ProgramPlayer(Protocol):
    """Plays trajectories by programs (`agents.programs`)."""

    async def play(self, task: Task, branches: Branches, session: str) -> ProgramEnd:
        """Run a trajectory's program to its end."""
        ...

    async def close(self) -> None:
        """End every program."""
        ...


@dataclass(frozen=True, slots=True)
class SharedWorld:
    """What all trajectories of a job share."""

    options: Mapping[str, Any] = field(default_factory=dict)
    tools: Mapping[str, ToolHandle] = field(default_factory=dict)
    environments: Sequence[str] = ()
    """Names, in the order of the job."""
    team: ConversationSpec | None = None
    """Whose turn it is and who hears whom, in a job with agents."""
    stateful: frozenset[str] = frozenset()
    """Targets that remember what they were asked: calls of them that are recorded are made again before a new one, and
    have to be answered as they were."""
    programs: ProgramPlayer | None = None
    """None in a job without a program."""


class TrajectoryFailed(BaseException):
    """The trajectory counts for nothing. No `except Exception` of a run function keeps it."""

    def __init__(self, cause: str, message: str = "") -> None:
        super().__init__(message or cause)
        self.cause = metric_name(cause)


class World:
    """One trajectory's."""

    def __init__(
        self,
        trajectory: Trajectory,
        shared: SharedWorld,
        caller: TargetCaller | None,
        journal: Journal,
        session: str,
        most_turns: int,
    ) -> None:
        """caller: None in a job without tools and environments. session: a name that no other trajectory has. Raises
        TrajectoryFailed for a column `tools` that names one that there is not."""
        self._trajectory, self._shared, self._caller = trajectory, shared, caller
        self._journal, self._most_turns = journal, most_turns
        self._recorded: list[tuple[str, str | None, Mapping[str, Any], RecordedAnswer]] = []
        """Calls of stateful targets that were answered from the journal, and not made yet."""
        self._num_calls_of_turn: Counter[int] = Counter()
        self.options = MappingProxyType(dict(shared.options))
        """`rollout.conversation.options` of the job."""
        self.tools: Mapping[str, ToolHandle] = self._chosen_tools()
        """By name, those of the trajectory."""
        self.programs, self.session = shared.programs, session
        self.has_session = False
        """Whether a call was made."""
        self.agents: dict[str, Policy] = {}
        """The agents of the job by name, in its order; none in jobs without a team. One takes a turn at a time."""

    @property
    def team(self) -> ConversationSpec:
        """The order of turns, and what each agent is shown. Raises TrajectoryFailed in a job without agents."""
        if self._shared.team is None:
            raise TrajectoryFailed("agents", "the job lists no agents")
        return self._shared.team

    @property
    def environment(self) -> str | None:
        """Name of the trajectory's environment; None where the job has none. Raises TrajectoryFailed for a column
        `environment` that names none."""
        names = self._shared.environments
        name = self._trajectory.task.columns.get("environment", names[0] if names else None)
        if name is not None and name not in names:
            raise TrajectoryFailed("environment", f"the data names environment {name!r}; there are {', '.join(names)}")
        return name

    async def call(self, name: str, arguments: Mapping[str, Any] | None = None, method: str | None = None) -> Answer:
        """What a tool or an environment answers. Errors are answers. Raises DoesNotReplay where a step is repeated and
        an environment answers otherwise than it did, TrajectoryFailed for calls without end."""
        handle = self.tools.get(name)
        target, method = (name, method) if handle is None else (handle.target, handle.method)
        given, turn = dict(arguments or {}), self._trajectory.num_turns
        self._num_calls_of_turn[turn] += 1
        if self._num_calls_of_turn[turn] > MOST_CALLS:
            raise TrajectoryFailed("calls", f"more than {MOST_CALLS} calls without a turn of the policy between them")
        what = json.dumps([target, method, given], sort_keys=True, default=str)
        if handle is not None and handle.sees:
            pictures = self._trajectory.task.pictures
            given[ENCODED_PICTURES] = [base64.b64encode(encoded).decode() for encoded in pictures]
        call, recorded = self._journal.begin_call(turn, what)
        if recorded is not None:
            if target in self._shared.stateful:
                self._recorded.append((target, method, given, recorded))
            answer: Answer = replayed(recorded)
        else:
            answer = await self._make(turn, call, target, method, given)
        self._trajectory.num_calls += 1
        self._trajectory.num_call_errors += answer.error is not None
        self._trajectory.call_seconds += answer.seconds
        return answer

    async def remade(self, what: str, make: Callable[[], Awaitable[Value]], digest: Callable[[Value], str]) -> Value:
        """What is made in every run of a step, such as steps of a simulator: only its digest is recorded, and has to be
        the same again. what: names it, equal in every run."""
        turn = self._trajectory.num_turns
        call, recorded = self._journal.begin_call(turn, what)
        value = await make()
        if recorded is None:
            self._journal.write_answer(turn, call, {"value": digest(value), "error": None, "seconds": 0.0})
        elif recorded["value"] != digest(value):
            raise DoesNotReplay(f"in turn {turn} something else came of {what[:100]} than is recorded")
        return value

    def mark(self, name: str, value: int) -> None:
        """Say something of the trajectory as a whole, which each of its rows has as the column `name`."""
        self._trajectory.columns[name] = value

    def embed(self, embedding: NDArray[np.float32] | None) -> None:
        """What an encoder made of its video, [numbers], for those who compare trajectories; None: nothing."""
        self._trajectory.embedding = embedding

    @property
    def is_shown(self) -> bool:
        """Whether a person will read of it, so that `show` is worth its while."""
        return self._trajectory.is_shown

    def show(self, name: str, value: Any) -> None:
        """Add something to the sample of a trajectory that a person reads. Raises TrajectoryFailed for a value that is
        not JSON."""
        if not self._trajectory.is_shown:
            return
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise TrajectoryFailed("show", f"{name} cannot be shown: {error}") from error
        self._trajectory.shown[name] = value

    def cut_off(self) -> None:
        """It ended before it was done: its rows are marked truncated."""
        self._trajectory.truncated = True

    def reward(self, value: float, turn: int | None = None) -> None:
        """Add to the trajectory's environment reward. turn: to whose last token the reward belongs; None: to the last
        turn there is. Raises TrajectoryFailed for what is not a finite number, and for what is no turn."""
        if turn is not None and not (isinstance(turn, int | np.integer) and turn >= 0):
            raise TrajectoryFailed("reward", f"a reward is of the turn {turn!r}; turns are whole numbers from 0")
        if isinstance(value, bool | int | float) and math.isfinite(value):
            self._trajectory.rewards.append((None if turn is None else int(turn), float(value)))
        else:
            raise TrajectoryFailed("reward", f"the reward {value!r} is not a finite number")

    def metric(self, name: str, value: float) -> None:
        """A figure, of which `conversation/world/<name>` is the mean. Raises TrajectoryFailed for one that is not a
        finite number."""
        if not isinstance(value, bool | int | float) or not math.isfinite(value):
            raise TrajectoryFailed("metric", f"the figure {name} is {value!r}, not a finite number")
        self._trajectory.metrics.append((metric_name(name), float(value)))

    def fail(self, cause: str, message: str = "") -> NoReturn:
        """End the trajectory as failed: it counts for nothing but in `conversation/failed_fraction/<cause>`."""
        raise TrajectoryFailed(cause, message)

    @property
    def turns(self) -> int:
        """Turns that the policy has taken."""
        return self._trajectory.num_turns

    @property
    def turns_left(self) -> int:
        """Turns that the policy may take yet."""
        return self._most_turns - self._trajectory.num_turns

    async def _make(
        self, turn: int, call: str, target: str, method: str | None, arguments: Mapping[str, Any]
    ) -> Answer:
        if self._caller is None:
            raise TrajectoryFailed("call", f"{target} was called, and the job has no tools and no environments")
        if target in self._shared.stateful:
            await self._catch_up(self._caller, target)
        self.has_session = True
        key = f"{self.session}/{turn}/{call}"
        with self._trajectory.call_under_way():
            answer = await self._caller.call(self.session, target, method, arguments, key)
        self._journal.write_answer(turn, call, recorded_of(answer))
        return answer

    async def _catch_up(self, caller: TargetCaller, target: str) -> None:
        """Bring a stateful target to where the journal ends."""
        calls = [item for item in self._recorded if item[0] == target]
        self._recorded = [item for item in self._recorded if item[0] != target]
        for number, (_, method, arguments, recorded) in enumerate(calls):
            self.has_session = True
            answer = await caller.call(self.session, target, method, arguments, f"{self.session}/again/{number}")
            if not is_alike(recorded_of(answer), recorded):
                raise DoesNotReplay(f"{target} answers call {number + 1} otherwise than is recorded")

    def _chosen_tools(self) -> Mapping[str, ToolHandle]:
        column = self._trajectory.task.columns.get("tools")
        if column is None:
            return self._shared.tools
        names, known = [name.strip() for name in column.split(",") if name.strip()], self._shared.tools
        if unknown := [name for name in names if name not in known]:
            raise TrajectoryFailed("tools", f"the data names tool {unknown[0]!r}; there are {', '.join(known)}")
        return {name: known[name] for name in names}


def metric_name(text: str) -> str:
    """Text as a part of a metric's name: lower-case letters, digits and underscores."""
    return _NOT_OF_A_NAME.sub("_", text.lower()).strip("_")[:_LONGEST_NAME] or "other"
