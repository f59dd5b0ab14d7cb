"""Plays one trajectory to its end: its run function, its journal, and what a failure costs."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from rljob_worker.conversations.journal.replay import DoesNotReplay
from rljob_worker.conversations.messages import Renderer
from rljob_worker.conversations.playing.idle_limit import idle_limit
from rljob_worker.conversations.playing.turns import Turns
from rljob_worker.conversations.policy import Agent, Bounds, ConversationOver, Policy
from rljob_worker.conversations.task import Task
from rljob_worker.conversations.trajectory import Trajectory
from rljob_worker.conversations.world import SharedWorld, TargetCaller, TrajectoryFailed, World
from rljob_worker.errors import EngineBroken, InvalidJob

Run = Callable[[Task, Policy, World], Awaitable[None]]
"""A run function."""


@dataclass(frozen=True, slots=True)
class Player:
    """Plays trajectories one at a time, in the event loop."""

    run: Run
    renderer: Renderer | None
    bounds: Bounds
    shared: SharedWorld
    caller: TargetCaller | None
    picture_token: int | None = None
    """As in `Policy`."""
    agents: Sequence[Agent] = ()
    """Those of a team; none where one plays, without a name."""
    most_idle_seconds: float = math.inf
    """How long a run function may wait for something else than turns and calls."""

    async def play(self, turns: Turns, session: str) -> Trajectory:
        """Run a trajectory to its end, whatever that is. session: a name that no other one has. Raises InvalidJob,
        EngineBroken."""
        task, trajectory, journal, sampled = turns.task, turns.trajectory, turns.journal, turns.sample
        if turns.failure is not None:
            trajectory.fail(*turns.failure)
            return trajectory
        world = None
        try:
            world = World(trajectory, self.shared, self.caller, journal, session, self.bounds.turns)
            policy = Policy(trajectory, self.renderer, self.bounds, sampled, self.picture_token)
            for agent in self.agents:
                world.agents[agent.name] = Policy(trajectory, agent.renderer, self.bounds, sampled, agent=agent)
            policy = next(iter(world.agents.values()), policy)
            with idle_limit(turns, self.most_idle_seconds):
                await ended_by_itself(self.run(task, policy, world))
            journal.require_replayed()
        except TrajectoryFailed as error:
            trajectory.fail(error.cause, str(error))
        except DoesNotReplay as error:
            trajectory.fail("replay", str(error))
        except (InvalidJob, EngineBroken, GeneratorExit):
            raise
        except BaseException as error:  # user code: whatever it raises costs its own
            if turns.is_given_up and isinstance(error, asyncio.CancelledError):
                raise
            trajectory.fail("error", f"{type(error).__name__}: {error}")
        trajectory.is_replayed = journal.has_replayed
        if self.caller is not None and world is not None and world.has_session:
            await self.caller.end(session)
        return trajectory


async def ended_by_itself(run: Awaitable[None]) -> None:
    """Wait for a run function; that it asked for more turns than there are ends it as well. Of what tasks of a group
    raised together, the first is raised."""
    try:
        await run
    except ConversationOver:
        return
    except BaseExceptionGroup as group:
        raised = group.split(ConversationOver)[1]
        if raised is not None:
            raise _first_of(raised) from None


def _first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    return _first_of(first) if isinstance(first, BaseExceptionGroup) else first
