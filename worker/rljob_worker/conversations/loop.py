"""Plays conversations: an event loop in a thread of its own beside the thread of the engine.

    event loop                                          the engine's thread
    run(task, policy, world) of each trajectory         commands of what the coroutines asked for
      await policy.chat(…)          ── a turn ──▶         engine.submit, engine.advance, until wake
                                    ◀── sampled ──        what has ended
      await world.call(…)           to processes

What a trajectory becomes depends on its task, the seeds and the world's answers alone: the draw of a token belongs to
its row, turn and position, whatever is decoded beside it and whenever it was asked for.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeVar

import numpy as np

from rljob_worker.batch import Column
from rljob_worker.conversations.commands import CopyOfRanks, EngineCommands, shared_commands
from rljob_worker.conversations.journal import DoesNotReplay, Entries, Journal, Record
from rljob_worker.conversations.messages import Renderer
from rljob_worker.conversations.policy import Bounds, ConversationOver, Policy, TurnRequest
from rljob_worker.conversations.task import Task
from rljob_worker.conversations.trajectory import Sampled, Trajectory
from rljob_worker.conversations.world import SharedWorld, TargetCaller, TrajectoryFailed, World
from rljob_worker.engines.rollout.protocol import RolloutEngine
from rljob_worker.engines.rollout.requests import EndedRequests, Ending, Sampling
from rljob_worker.errors import InvalidJob

log = logging.getLogger("rljob.conversations")

Value = TypeVar("Value")
Run = Callable[[Task, Policy, World], Awaitable[None]]
"""A run function."""
WhenOver = Callable[[Sequence[Trajectory]], None]
"""Called in the engine's thread with the trajectories of a group once all of them are over, for good."""

ATTEMPT_TURNS = 1 << 24
"""Turns of a row's first attempt have numbers below this, those of the second above."""
PEERS_WAIT_SECONDS = 20.0
"""Peers of a leader that waits for the world hear from it at least this often."""
NAMED_FAILURES = 3
"""Failures of each cause that are named in the log, of one play."""


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


@dataclass(frozen=True, slots=True, eq=False)
class _Turn:
    """A turn that a coroutine waits for."""

    row_id: int
    number: int
    request: TurnRequest
    future: asyncio.Future[Sampled]


@dataclass(frozen=True, slots=True)
class _Over:
    """A trajectory is over: its rows are held no longer; of a group that is complete, its trajectories."""

    row_ids: tuple[int, ...]
    group: tuple[Trajectory, ...] = ()


@dataclass(frozen=True, slots=True)
class _End:
    """Nothing is left to play, or something went wrong that is not a trajectory's own."""

    error: BaseException | None = None


_Event = list[_Turn] | _Over | _End


class Conversations:
    """Plays trajectories with one engine. All methods are for the engine's thread; `close` ends the other one."""

    def __init__(
        self,
        engine: RolloutEngine,
        run: Run,
        renderer: Renderer | None,
        bounds: Bounds,
        *,
        concurrency: int = 64,
        shared: SharedWorld | None = None,
        caller: TargetCaller | None = None,
    ) -> None:
        """concurrency: trajectories that are played at once."""
        self._engine, self._run, self._renderer, self._bounds = engine, run, renderer, bounds
        self.concurrency, self.shared, self._caller = concurrency, shared or SharedWorld(), caller
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None
        self.num_redrawn = 0
        """Groups of the last play that were drawn again."""

    def play(self, play: Play, copy: CopyOfRanks) -> list[Trajectory]:
        """All trajectories, in the order of their tasks; none on a peer of a copy, which helps to generate them. Every
        rank of the copy calls it alike. Nothing else may be running in the engine.

        Raises BadData as the engine does, InvalidJob for what of the job no trajectory can be played with.
        """
        if not copy.is_leader:
            self._follow(play, copy)
            return []
        game = _Game(self, play, self._started())
        try:
            self._lead(game, play, copy)
        except BaseException:
            game.cancel()
            self._engine.abort(np.array(sorted(game.running), np.int64))
            raise
        self.num_redrawn = game.num_redrawn
        return game.results()

    def close(self) -> None:
        """End the processes of tools and environments, and the thread of the event loop."""
        if self._caller is not None:
            self.prepare(self._caller.close())
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._loop = self._thread = None

    @property
    def wake(self) -> Callable[[], None]:
        """Let the engine return after the step that it is in."""
        return self._engine.wake

    @property
    def version(self) -> int:
        """Policy version of the engine."""
        return self._engine.version

    def prepare(self, coroutine: Coroutine[Any, Any, Value]) -> Value:
        """Wait in this thread for a coroutine of the event loop, and what it gives."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._started()).result()

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = Thread(target=self._loop.run_forever, name="conversations", daemon=True)
            self._thread.start()
        return self._loop

    # ---- the engine's thread

    def _lead(self, game: _Game, play: Play, copy: CopyOfRanks) -> None:
        game.start()
        is_last = False
        while not is_last:
            commands = shared_commands(copy, lambda: game.next_commands(self._is_idle))
            is_last = commands.is_last
            game.deliver(self._obey(commands, play.sampling))

    def _follow(self, play: Play, copy: CopyOfRanks) -> None:
        is_last = False
        while not is_last:
            commands = shared_commands(copy, _of_the_leader)
            is_last = commands.is_last
            self._obey(commands, play.sampling)

    def _obey(self, commands: EngineCommands, sampling: Sampling) -> EndedRequests | None:
        if len(commands.released):
            self._engine.release(commands.released)
        if len(commands.row_ids):
            self._engine.submit(commands.requests(sampling))
        if self._is_idle:
            return None
        ended = self._engine.advance()
        if self._bounds.turns > 1 and len(ended):
            self._hold(ended)
        return ended

    def _hold(self, ended: EndedRequests) -> None:
        """Keep keys and values of rows that may go on."""
        row_ids = ended.row_ids[ended.endings != Ending.LENGTH]
        try:
            self._engine.hold(row_ids)
        except InvalidJob:  # together longer than what there is room for: those that go first are computed anew
            for row_id in row_ids:
                with suppress(InvalidJob):
                    self._engine.hold(np.array([row_id]))

    @property
    def _is_idle(self) -> bool:
        load = self._engine.load
        return not load.running and not load.waiting

    # ---- of one trajectory, in the event loop

    async def play_one(
        self, task: Task, play: Play, generate: Callable[[Task, TurnRequest], Awaitable[Sampled]]
    ) -> Trajectory:
        """Run it to its end, whatever that is. Raises InvalidJob."""
        trajectory = Trajectory(task)
        record = play.records.get((task.trajectory, task.attempt))
        journal = Journal(task.trajectory, task.attempt, record, play.entries)

        async def sampled(request: TurnRequest) -> Sampled:
            known = journal.sampled(request.turn, request.sequence, self.version)
            if known is not None:
                return known
            result = await generate(task, request)
            journal.write_sample(request.turn, request.sequence, result)
            return result

        session, world = f"{play.label}/{task.trajectory}/{task.attempt}", None
        try:
            world = World(trajectory, self.shared, self._caller, journal, session, self._bounds.turns)
            policy = Policy(trajectory, self._renderer, self._bounds, sampled)
            await ended_by_itself(self._run(task, policy, world))
            journal.require_replayed()
        except TrajectoryFailed as error:
            trajectory.fail(error.cause, str(error))
        except DoesNotReplay as error:
            trajectory.fail("replay", str(error))
        except InvalidJob:
            raise
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # user code: whatever it raises costs its own
            trajectory.fail("error", f"{type(error).__name__}: {error}")
        trajectory.is_replayed = journal.has_replayed
        if self._caller is not None and world is not None and world.has_session:
            await self._caller.end(session)
        return trajectory


async def ended_by_itself(run: Awaitable[None]) -> None:
    """Wait for a run function; that it asked for more turns than there are ends it as well."""
    try:
        await run
    except ConversationOver:
        return


class _Game:
    """One play: what is under way in the event loop, and what the engine's thread hears of it."""

    def __init__(self, owner: Conversations, play: Play, loop: asyncio.AbstractEventLoop) -> None:
        self._owner, self._play, self._loop = owner, play, loop
        self._events: SimpleQueue[_Event] = SimpleQueue()
        self.running: dict[int, _Turn] = {}
        """What the engine was asked for, by row_id; of the engine's thread."""
        self._ready = deque(play.tasks)
        self._in_flight: set[asyncio.Task[Trajectory]] = set()
        self._asked: list[_Turn] = []
        self._results: dict[int, Trajectory] = {}
        self._of_group: dict[int, list[Task]] = {}
        for task in play.tasks:
            self._of_group.setdefault(task.group, []).append(task)
        self._left = {group: len(tasks) for group, tasks in self._of_group.items()}
        self._num_named: dict[str, int] = {}
        self.num_redrawn = 0
        self._is_last = False

    # ---- the engine's thread

    def start(self) -> None:
        self._loop.call_soon_threadsafe(self._start_more)

    def next_commands(self, is_idle: bool) -> EngineCommands:
        """What was asked for since the last call; waits for something where the engine has nothing to do."""
        events = self._heard(is_idle)
        turns, released = list[_Turn](), list[int]()
        for event in events:
            if isinstance(event, _End):
                if event.error is not None:
                    raise event.error
                self._is_last = True
            elif isinstance(event, _Over):
                released += event.row_ids
                if event.group and self._play.when_over is not None:
                    self._play.when_over(event.group)
            else:
                turns += event
        return self._commands(turns, released)

    def _heard(self, waits: bool) -> list[_Event]:
        events = list[_Event]()
        try:
            if waits:
                events.append(self._events.get(timeout=PEERS_WAIT_SECONDS))
            while True:
                events.append(self._events.get_nowait())
        except Empty:
            return events

    def _commands(self, turns: Sequence[_Turn], released: Sequence[int]) -> EngineCommands:
        """Requests in the order of their prompts, equal ones once."""
        numbers: dict[bytes, int] = {}
        prompt_of = [numbers.setdefault(turn.request.sequence.tobytes(), len(numbers)) for turn in turns]
        order = sorted(range(len(turns)), key=prompt_of.__getitem__)
        firsts = {prompt_of[at]: turns[at].request.sequence for at in reversed(range(len(turns)))}
        self.running |= {turn.row_id: turn for turn in turns}
        return EngineCommands(
            row_ids=np.array([turns[at].row_id for at in order], np.int64),
            turns=np.array([turns[at].number for at in order], np.int64),
            max_tokens=np.array([turns[at].request.max_tokens for at in order], np.int64),
            prompt_of=np.array([prompt_of[at] for at in order], np.int64),
            prompts=Column.ragged([firsts[number] for number in range(len(firsts))]),
            released=np.array(released, np.int64),
            is_last=self._is_last,
        )

    def deliver(self, ended: EndedRequests | None) -> None:
        """Give coroutines what they wait for."""
        if ended is None or not len(ended):
            return
        columns = (ended.response_ids, ended.log_probs, ended.token_versions)
        rows = zip(
            ended.row_ids.tolist(), *(column.to_list() for column in columns), ended.endings.tolist(), strict=True
        )
        answers = [
            (self.running.pop(row_id).future, Sampled(np.array(ids, np.int64), np.array(probs), np.array(of), ending))
            for row_id, ids, probs, of, ending in rows
        ]
        self._loop.call_soon_threadsafe(_answer, answers)

    def cancel(self) -> None:
        """Give up what is under way."""

        async def cancelled() -> None:
            self._ready.clear()
            for task in self._in_flight:
                task.cancel()
            await asyncio.gather(*self._in_flight, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(cancelled(), self._loop).result()

    def results(self) -> list[Trajectory]:
        return [self._results[task.trajectory] for task in self._play.tasks]

    # ---- the event loop

    def _start_more(self) -> None:
        while self._ready and len(self._in_flight) < self._owner.concurrency:
            task = self._ready.popleft()
            coroutine = self._owner.play_one(task, self._play, self._generate)
            running = self._loop.create_task(coroutine)
            self._in_flight.add(running)
            running.add_done_callback(self._over)
        if not self._ready and not self._in_flight:
            self._tell(_End())

    def _over(self, running: asyncio.Task[Trajectory]) -> None:
        self._in_flight.discard(running)
        if running.cancelled():
            return
        if (error := running.exception()) is not None:
            self._tell(_End(error))
            return
        trajectory = running.result()
        self._results[trajectory.task.trajectory] = trajectory
        self._name_failure(trajectory)
        self._tell(_Over(tuple(self._row_ids(trajectory)), self._complete_group(trajectory.task.group)))
        self._start_more()

    def _complete_group(self, group: int) -> tuple[Trajectory, ...]:
        """Trajectories of a group of which one has ended, if that was the last and none is played again."""
        self._left[group] -= 1
        if self._left[group]:
            return ()
        tasks = self._of_group[group]
        trajectories = tuple(self._results[task.trajectory] for task in tasks)
        num_left = sum(trajectory.failed is None for trajectory in trajectories)
        if num_left < self._play.least_left and not trajectories[0].task.attempt:
            self.num_redrawn += 1
            self._left[group] = len(tasks)
            self._ready.extendleft(task.again(1) for task in reversed(tasks))
            return ()
        return trajectories

    def _name_failure(self, trajectory: Trajectory) -> None:
        if (cause := trajectory.failed) is None:
            return
        number = self._num_named[cause] = self._num_named.get(cause, 0) + 1
        if number <= NAMED_FAILURES:
            log.warning("trajectory %d failed (%s): %s", trajectory.task.trajectory, cause, trajectory.message)

    def _row_ids(self, trajectory: Trajectory) -> range:
        first = trajectory.task.trajectory * self._play.rows_per_trajectory
        return range(first, first + len(trajectory.rows))

    async def _generate(self, task: Task, request: TurnRequest) -> Sampled:
        """One turn of the engine. Turns that are asked for in one round of the event loop are handed over together."""
        row_id = task.trajectory * self._play.rows_per_trajectory + request.row_index
        number = request.turn + task.attempt * ATTEMPT_TURNS
        turn = _Turn(row_id, number, request, self._loop.create_future())
        if not self._asked:
            self._loop.call_soon(self._hand_over)
        self._asked.append(turn)
        return await turn.future

    def _hand_over(self) -> None:
        asked, self._asked = self._asked, []
        self._tell(asked)

    def _tell(self, event: _Event) -> None:
        self._events.put(event)
        self._owner.wake()


def _of_the_leader() -> EngineCommands:
    raise AssertionError("peers give no commands")


def _answer(answers: Sequence[tuple[asyncio.Future[Sampled], Sampled]]) -> None:
    for future, sampled in answers:
        if not future.done():
            future.set_result(sampled)
