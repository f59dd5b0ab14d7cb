"""One play: what is under way in the event loop, and what the engine's thread hears of it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

import numpy as np

from rljob_worker.batch import Column, Indices
from rljob_worker.conversations.playing.commands import EngineCommands
from rljob_worker.conversations.playing.loop_watch import TASK_NAME, LoopWatch
from rljob_worker.conversations.playing.one_trajectory import Player
from rljob_worker.conversations.playing.plays import AskedTurn, Event, Play, PlayEnd, TrajectoryOver, TurnAbandoned
from rljob_worker.conversations.policy import TurnRequest
from rljob_worker.conversations.task import Task
from rljob_worker.conversations.trajectory import Sampled, Trajectory
from rljob_worker.engines.rollout.requests import EndedRequests, PartialResponses
from rljob_worker.vision.pictures import PictureList

log = logging.getLogger("rljob.conversations")

ATTEMPT_TURNS = 1 << 24
"""Turns of a row's first attempt have numbers below this, those of the second above."""
PEERS_WAIT_SECONDS = 20.0
"""Peers of a leader that waits for the world hear from it at least this often."""
LOOK_SECONDS = 1.0
"""How often a loop that says nothing is looked at."""
NAMED_FAILURES = 3
"""Failures of each cause that are named in the log, of one play."""


class Game:
    """One play: what is under way in the event loop, and what the engine's thread hears of it."""

    def __init__(
        self,
        play: Play,
        player: Player,
        watch: LoopWatch,
        loop: asyncio.AbstractEventLoop,
        *,
        concurrency: int,
        wake: Callable[[], None],
    ) -> None:
        """concurrency: trajectories that are played at once. wake: lets the engine return after the step that it is
        in."""
        self._play, self._player, self._watch, self._loop = play, player, watch, loop
        self._concurrency, self._wake = concurrency, wake
        self._events: SimpleQueue[Event] = SimpleQueue()
        self.running: dict[int, AskedTurn] = {}
        """What the engine was asked for, by row_id; of the engine's thread."""
        self._heard_rows: set[int] = set()
        """Rows of these of which somebody wants to know what there is."""
        self._ready = deque(play.tasks)
        self._in_flight: set[asyncio.Task[Trajectory]] = set()
        self._asked: list[AskedTurn] = []
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
        """Begin the first trajectories."""
        self._loop.call_soon_threadsafe(self._start_more)

    def next_commands(self, is_idle: bool) -> EngineCommands:
        """What was asked for since the last call; waits for something where the engine has nothing to do. Raises
        LoopBlocked."""
        events = self._heard(PEERS_WAIT_SECONDS if is_idle else 0.0)
        turns, released, aborted = list[AskedTurn](), list[int](), list[int]()
        for event in events:
            if isinstance(event, PlayEnd):
                if event.error is not None:
                    raise event.error
                self._is_last = True
            elif isinstance(event, TrajectoryOver):
                released += event.row_ids
                if event.group and self._play.when_over is not None:
                    self._play.when_over(event.group)
            elif isinstance(event, TurnAbandoned):
                aborted += self._abandon(event.turn, turns)
            else:
                turns += event
        return self._commands(turns, released, aborted)

    def _abandon(self, turn: AskedTurn, new: list[AskedTurn]) -> list[int]:
        """Rows that the engine decodes for a turn that nobody waits for; new: turns that it has not heard of."""
        if turn in new:
            new.remove(turn)
        elif self.running.get(turn.row_id) is turn:
            del self.running[turn.row_id]
            self._heard_rows.discard(turn.row_id)
            return [turn.row_id]
        return []

    def _heard(self, seconds: float) -> list[Event]:
        """Events so far; the first is waited for up to so many seconds. Raises LoopBlocked."""
        end, events = time.monotonic() + seconds, list[Event]()
        while not events:
            self._watch.check()
            left = end - time.monotonic()
            if left <= 0:
                break
            with suppress(Empty):
                events.append(self._events.get(timeout=min(left, LOOK_SECONDS)))
        with suppress(Empty):
            while True:
                events.append(self._events.get_nowait())
        return events

    def _commands(self, turns: Sequence[AskedTurn], released: Sequence[int], aborted: Sequence[int]) -> EngineCommands:
        """Requests in the order of their prompts, equal ones once."""
        numbers: dict[bytes | int, int] = {}
        keys = [turn.row_id if (same := turn.request.identity) is None else same for turn in turns]
        prompt_of = [numbers.setdefault(key, len(numbers)) for key in keys]
        order = sorted(range(len(turns)), key=prompt_of.__getitem__)
        firsts = {prompt_of[at]: turns[at].request for at in reversed(range(len(turns)))}
        requests = [firsts[number] for number in range(len(firsts))]
        shows = any(request.pictures for request in requests)
        self.running |= {turn.row_id: turn for turn in turns}
        self._heard_rows |= {turn.row_id for turn in turns if turn.request.hear is not None}
        return EngineCommands(
            row_ids=np.array([turns[at].row_id for at in order], np.int64),
            turns=np.array([turns[at].number for at in order], np.int64),
            max_tokens=np.array([turns[at].request.max_tokens for at in order], np.int64),
            prompt_of=np.array([prompt_of[at] for at in order], np.int64),
            prompts=Column.ragged([request.sequence for request in requests]),
            pictures=Column.binary([PictureList.pack(item.pictures) for item in requests]) if shows else None,
            states=states_of(requests),
            released=np.array(released, np.int64),
            aborted=np.array(aborted, np.int64),
            is_last=self._is_last,
            heard=np.array(sorted(self._heard_rows), np.int64),
        )

    def deliver(self, ended: EndedRequests | None) -> None:
        """Give coroutines what they wait for."""
        if ended is None or not len(ended):
            return
        tokens, log_probs, versions = ended.response_ids, ended.log_probs, ended.token_versions
        answers = list[tuple[asyncio.Future[Sampled], Sampled]]()
        for at, (row_id, ending) in enumerate(zip(ended.row_ids.tolist(), ended.endings.tolist(), strict=True)):
            parts = [column.row(at).copy() for column in (tokens, log_probs, versions)]
            self._heard_rows.discard(row_id)
            answers.append((self.running.pop(row_id).future, Sampled(parts[0], parts[1], parts[2], ending)))
        self._loop.call_soon_threadsafe(_answer, answers)

    def tell(self, row_ids: Indices, partial: PartialResponses) -> None:
        """Let coroutines hear what there is of turns that go on."""
        heard = [(self.running[row], partial.response_ids.row(at).copy()) for at, row in enumerate(row_ids.tolist())]
        self._loop.call_soon_threadsafe(_hear, heard)

    def cancel(self) -> None:
        """Give up what is under way."""

        async def cancelled() -> None:
            self._ready.clear()
            for task in self._in_flight:
                task.cancel()
            await asyncio.gather(*self._in_flight, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(cancelled(), self._loop).result()

    def results(self) -> list[Trajectory]:
        """All trajectories, in the order of their tasks."""
        return [self._results[task.trajectory] for task in self._play.tasks]

    # ---- the event loop

    def _start_more(self) -> None:
        while self._ready and len(self._in_flight) < self._concurrency:
            task = self._ready.popleft()
            coroutine = self._player.play(task, self._play, self._generate)
            running = self._loop.create_task(coroutine, name=TASK_NAME.format(task.trajectory))
            self._in_flight.add(running)
            running.add_done_callback(self._over)
        if not self._ready and not self._in_flight:
            self._tell(PlayEnd())

    def _over(self, running: asyncio.Task[Trajectory]) -> None:
        self._in_flight.discard(running)
        if running.cancelled():
            return
        if (error := running.exception()) is not None:
            self._tell(PlayEnd(error))
            return
        trajectory = running.result()
        self._results[trajectory.task.trajectory] = trajectory
        self._name_failure(trajectory)
        first, several = trajectory.task.trajectory * self._play.rows_per_trajectory, self._play.rows_per_trajectory
        self._tell(TrajectoryOver(tuple(range(first, first + several)), self._complete_group(trajectory.task.group)))
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

    async def _generate(self, task: Task, request: TurnRequest) -> Sampled:
        """One turn of the engine. Turns that are asked for in one round of the event loop are handed over together."""
        row_id = task.trajectory * self._play.rows_per_trajectory + request.row_index
        number = request.turn + task.attempt * ATTEMPT_TURNS
        turn = AskedTurn(row_id, number, request, self._loop.create_future())
        if not self._asked:
            self._loop.call_soon(self._hand_over)
        self._asked.append(turn)
        try:
            return await turn.future
        except asyncio.CancelledError:
            if turn in self._asked:
                self._asked.remove(turn)
            else:
                self._tell(TurnAbandoned(turn))
            raise

    def _hand_over(self) -> None:
        asked, self._asked = self._asked, []
        self._tell(asked)

    def _tell(self, event: Event) -> None:
        self._events.put(event)
        self._wake()


def states_of(requests: Sequence[TurnRequest]) -> Column | None:
    """Ragged float32 [requests]; None where no request has a state."""
    states = [request.row.state for request in requests]
    if all(state is None for state in states):
        return None
    nothing = np.empty(0, np.float32)
    return Column.ragged([nothing if state is None else state for state in states], "float32")


def _hear(heard: Sequence[tuple[AskedTurn, Indices]]) -> None:
    for turn, tokens in heard:
        if turn.request.hear is not None and not turn.future.done():
            turn.request.hear(tokens)


def _answer(answers: Sequence[tuple[asyncio.Future[Sampled], Sampled]]) -> None:
    for future, sampled in answers:
        if not future.done():
            future.set_result(sampled)
