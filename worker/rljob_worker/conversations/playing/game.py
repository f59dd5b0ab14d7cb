"""One play: what is under way in the event loop, and what the engine's thread hears of it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

from rljob_worker.batch import Indices
from rljob_worker.conversations.journal.replay import Journal
from rljob_worker.conversations.playing.commands import EngineCommands
from rljob_worker.conversations.playing.groups import Groups
from rljob_worker.conversations.playing.loop_watch import TASK_NAME, LoopWatch
from rljob_worker.conversations.playing.one_trajectory import Player
from rljob_worker.conversations.playing.plays import AskedTurn, Event, Play, PlayEnd, TrajectoryOver, TurnAbandoned
from rljob_worker.conversations.playing.turns import RoundTokens, Turns
from rljob_worker.conversations.policy import TurnRequest
from rljob_worker.conversations.task import Task
from rljob_worker.conversations.trajectory import Sampled, Trajectory
from rljob_worker.engines.rollout.requests import EndedRequests, PartialResponses

log = logging.getLogger("rljob.conversations")

ATTEMPT_TURNS = 1 << 24
"""Turns of a row's first attempt have numbers below this, those of the second above."""
PEERS_WAIT_SECONDS = 20.0
"""Peers of a leader that waits for the world hear from it at least this often."""
LOOK_SECONDS = 1.0
"""How often a loop that says nothing is looked at."""
PORTION = 64
"""Turns that are enough for the engine to begin with."""
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
        version: Callable[[], int],
    ) -> None:
        """concurrency: trajectories that are played at once. wake: lets the engine return after the step that it is
        in. version: of its weights."""
        self._player, self._loop = player, loop
        self._concurrency, self._wake, self._version = concurrency, wake, version
        self._events: SimpleQueue[Event] = SimpleQueue()
        self.running: dict[int, AskedTurn] = {}
        """What the engine was asked for, by row_id; of the engine's thread."""
        self._heard_rows: set[int] = set()
        """Rows of these of which somebody wants to know what there is."""
        self._ready: deque[Task | Turns] = deque()
        """What is to begin, and what is to go on."""
        self._in_flight: set[asyncio.Task[Trajectory]] = set()
        """Played, or resting between two rounds."""
        self._num_active = 0
        """Those that are played."""
        self._turns: dict[int, Turns] = {}
        """By trajectory, of all groups that are not complete."""
        self._asked: list[AskedTurn] = []
        self._asked_group = -1
        """The group of the last of these."""
        self._groups = Groups()
        self._num_named: dict[str, int] = {}
        self.num_tokens = 0
        """Tokens that were sampled in the play, or taken from its journal."""
        self._is_last = False
        self.begin(play, watch)

    # ---- the engine's thread

    def begin(self, play: Play, watch: LoopWatch) -> None:
        """Prepare a play: of a further round, in which trajectories that rest go on. From the engine's thread, while
        nothing is played."""
        self._play, self._watch, self._is_last = play, watch, False
        self.num_tokens, self._num_named, self._groups.num_redrawn = 0, {}, 0
        resting = [turns for _, turns in sorted(self._turns.items()) if turns.is_resting]
        for turns in resting:
            if play.rounds is not None and play.rounds.begins_step:
                turns.begin_step(play.records.get((turns.task.trajectory, turns.task.attempt)), play.entries)
        self._groups.begin(play.tasks)
        self._ready = deque([*resting, *play.tasks])

    def start(self) -> None:
        """Let trajectories go on, and the first ones begin."""
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
        self.running |= {turn.row_id: turn for turn in turns}
        self._heard_rows |= {turn.row_id for turn in turns if turn.request.hear is not None}
        heard = sorted(self._heard_rows)
        return EngineCommands.of_turns(turns, released, aborted, heard=heard, is_last=self._is_last)

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

    def deliver(self, ended: EndedRequests | None) -> None:
        """Give coroutines what they wait for."""
        if ended is None or not len(ended):
            return
        tokens, log_probs, versions = ended.response_ids, ended.log_probs, ended.token_versions
        answers = list[tuple[asyncio.Future[Sampled], Sampled]]()
        for at, (row_id, ending) in enumerate(zip(ended.row_ids.tolist(), ended.endings.tolist(), strict=True)):
            parts = [column.row(at).copy() for column in (tokens, log_probs, versions)]
            self._heard_rows.discard(row_id)
            sampled = Sampled(parts[0], parts[1], parts[2], ending, ended.top_log_probs.get(row_id))
            answers.append((self.running.pop(row_id).future, sampled))
        self._loop.call_soon_threadsafe(_answer, answers)

    def tell(self, row_ids: Indices, partial: PartialResponses) -> None:
        """Let coroutines hear what there is of turns that go on."""
        heard = [(self.running[row], partial.response_ids.row(at).copy()) for at, row in enumerate(row_ids.tolist())]
        self._loop.call_soon_threadsafe(_hear, heard)

    def cancel(self) -> None:
        """Give up what is under way."""

        async def cancelled() -> None:
            self._ready.clear()
            for turns in self._turns.values():
                turns.is_given_up = True
            for task in self._in_flight:
                task.cancel()
            await asyncio.gather(*self._in_flight, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(cancelled(), self._loop).result()

    def results(self) -> list[Trajectory]:
        """All trajectories of groups that are complete, in their order, once."""
        trajectories = self._groups.take_complete()
        for trajectory in trajectories:
            del self._turns[trajectory.task.trajectory]
        return trajectories

    def under_way(self) -> dict[int, Turns]:
        """By trajectory, the turns of groups that are not complete; while nothing is played."""
        return self._turns

    @property
    def num_redrawn(self) -> int:
        """Groups that were drawn again in the play."""
        return self._groups.num_redrawn

    # ---- the event loop

    def _start_more(self) -> None:
        while self._ready and self._num_active < self._concurrency:
            self._num_active += 1
            item = self._ready.popleft()
            turns = item if isinstance(item, Turns) else self._new_turns(item)
            turns.tokens = self._tokens_of(turns.task.group)
            if isinstance(item, Turns):
                turns.go_on()
                continue
            coroutine = self._player.play(turns, self._session_of(item))
            running = self._loop.create_task(coroutine, name=TASK_NAME.format(item.trajectory))
            self._in_flight.add(running)
            running.add_done_callback(self._over)
        if not self._ready and not self._num_active:
            self._tell(PlayEnd())

    def _new_turns(self, task: Task) -> Turns:
        play, rounds, key = self._play, self._play.rounds, (task.trajectory, task.attempt)
        carried = None if rounds is None else rounds.carried.get(key)
        journal = Journal(
            *key,
            play.records.get(key),
            play.entries,
            carried=None if carried is None else carried.record,
            remembers=rounds is not None,
        )
        is_shown = task.trajectory in play.shown
        turns = Turns(task, journal, self._generate, self._version, self._rested, is_shown=is_shown)
        turns.failure = None if carried is None else carried.failure
        self._turns[task.trajectory] = turns
        return turns

    def _tokens_of(self, group: int) -> RoundTokens:
        rounds = self._play.rounds
        return RoundTokens() if rounds is None else RoundTokens(rounds.tokens, is_last=group in rounds.last)

    def _session_of(self, task: Task) -> str:
        """Named after the step in which the trajectory began, and so are the keys of its calls."""
        rounds = self._play.rounds
        label = self._play.label if rounds is None else f"step-{rounds.begun_in[task.group]}"
        return f"{label}/{task.trajectory}/{task.attempt}"

    def _rested(self, turns: Turns) -> None:
        self._leave(turns, ())

    def _over(self, running: asyncio.Task[Trajectory]) -> None:
        self._in_flight.discard(running)
        if running.cancelled():
            return
        if (error := running.exception()) is not None:
            self._tell(PlayEnd(error))
            return
        trajectory = running.result()
        self._name_failure(trajectory)
        group, again = self._groups.end(trajectory, self._play.least_left)
        self._ready.extendleft(reversed(again))
        self._leave(self._turns[trajectory.task.trajectory], group)

    def _leave(self, turns: Turns, group: tuple[Trajectory, ...]) -> None:
        """Nothing of a trajectory goes on in this play. group: where it made its group complete."""
        self._num_active -= 1
        self.num_tokens += turns.tokens.used
        first, several = turns.task.trajectory * self._play.rows_per_trajectory, self._play.rows_per_trajectory
        self._tell(TrajectoryOver(tuple(range(first, first + several)), group))
        self._start_more()

    def _name_failure(self, trajectory: Trajectory) -> None:
        if (cause := trajectory.failed) is None:
            return
        number = self._num_named[cause] = self._num_named.get(cause, 0) + 1
        if number <= NAMED_FAILURES:
            log.warning("trajectory %d failed (%s): %s", trajectory.task.trajectory, cause, trajectory.message)

    async def _generate(self, task: Task, request: TurnRequest, begun: Sampled, max_tokens: int) -> Sampled:
        """One turn of the engine. Turns that are asked for in one pass of the event loop are handed over together, many
        in portions: the engine decodes the first while the others are rendered. A group is not divided, as its members
        share a prompt."""
        row_id = task.trajectory * self._play.rows_per_trajectory + request.row_index
        number = request.turn + task.attempt * ATTEMPT_TURNS
        turn = AskedTurn(row_id, number, request, self._loop.create_future(), begun, max_tokens)
        if len(self._asked) >= PORTION and task.group != self._asked_group:
            self._hand_over()
        if not self._asked:
            self._loop.call_soon(self._hand_over)
        self._asked.append(turn)
        self._asked_group = task.group
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
        if asked:
            self._tell(asked)

    def _tell(self, event: Event) -> None:
        self._events.put(event)
        self._wake()


def _hear(heard: Sequence[tuple[AskedTurn, Indices]]) -> None:
    for turn, tokens in heard:
        if turn.request.hear is not None and not turn.future.done():
            turn.request.hear(tokens)


def _answer(answers: Sequence[tuple[asyncio.Future[Sampled], Sampled]]) -> None:
    for future, sampled in answers:
        if not future.done():
            future.set_result(sampled)
