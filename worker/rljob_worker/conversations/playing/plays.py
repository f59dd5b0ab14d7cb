"""What is played in one go, and what the thread of the engine hears of it meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rljob_worker.conversations.journal.records import Record
from rljob_worker.conversations.journal.replay import Entries
from rljob_worker.conversations.playing.turns import Rounds
from rljob_worker.conversations.policy import TurnRequest
from rljob_worker.conversations.task import Task
from rljob_worker.conversations.trajectory import Sampled, Trajectory
from rljob_worker.engines.rollout.requests import Sampling

WhenOver = Callable[[Sequence[Trajectory]], None]
"""Called in the engine's thread with the trajectories of a group once all of them are over, for good."""


@dataclass(frozen=True, slots=True)
class Play:
    """What is played in one go."""

    tasks: Sequence[Task]
    sampling: Sampling
    label: str
    """Names the step: sessions of different plays have different names."""
    rows_per_trajectory: int = 1
    least_left: int = 0
    """Trajectories of a group that must not fail, or the group is drawn again once."""
    when_over: WhenOver | None = None
    records: dict[tuple[int, int], Record] = field(default_factory=dict)
    """What an earlier attempt at the step recorded, by trajectory and attempt at the group."""
    entries: Entries | None = None
    """Where the journal is written; None: nothing is kept."""
    shown: frozenset[int] = frozenset()
    """Trajectories of which a person is shown more than what was said."""
    rounds: Rounds | None = None
    """Which round of `rollout.partial` it is; None: trajectories are played to their ends."""


@dataclass(frozen=True, slots=True, eq=False)
class AskedTurn:
    """A turn that a coroutine waits for."""

    row_id: int
    number: int
    request: TurnRequest
    future: asyncio.Future[Sampled]
    begun: Sampled
    """What the turn has already, possibly nothing."""
    max_tokens: int
    """That it may have, these included."""


@dataclass(frozen=True, slots=True)
class TurnAbandoned:
    """Nobody waits for a turn any more."""

    turn: AskedTurn


@dataclass(frozen=True, slots=True)
class TrajectoryOver:
    """A trajectory is over, or waits for another round: its rows are held no longer; of a group that is complete, its
    trajectories."""

    row_ids: tuple[int, ...]
    group: tuple[Trajectory, ...] = ()


@dataclass(frozen=True, slots=True)
class PlayEnd:
    """Nothing is left to play, or something went wrong that is not a trajectory's own."""

    error: BaseException | None = None


Event = list[AskedTurn] | TurnAbandoned | TrajectoryOver | PlayEnd
