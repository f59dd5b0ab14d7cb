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
import math
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from threading import Thread
from typing import Any, TypeVar

import numpy as np

from rljob_worker.batch import Indices
from rljob_worker.conversations.messages import Renderer
from rljob_worker.conversations.playing.commands import EngineCommands, shared_commands
from rljob_worker.conversations.playing.game import Game
from rljob_worker.conversations.playing.loop_watch import LoopBlocked, LoopWatch
from rljob_worker.conversations.playing.one_trajectory import Player, Run
from rljob_worker.conversations.playing.plays import Play
from rljob_worker.conversations.playing.policy_engines import PlayingEngine
from rljob_worker.conversations.playing.turns import Turns
from rljob_worker.conversations.policy import Agent, Bounds
from rljob_worker.conversations.trajectory import Trajectory
from rljob_worker.conversations.world import SharedWorld, TargetCaller
from rljob_worker.engines.protocols import CopyOfRanks
from rljob_worker.engines.rollout.requests import EndedRequests, Ending, PartialResponses, Sampling
from rljob_worker.errors import InvalidJob

Value = TypeVar("Value")

STEPS_UNHEARD = 8
"""Decode steps between two looks at turns that somebody wants to hear before they are over."""


class Conversations:
    """Plays trajectories with one engine. All methods are for the engine's thread; `close` ends the other one."""

    def __init__(
        self,
        engine: PlayingEngine,
        run: Run,
        renderer: Renderer | None,
        bounds: Bounds,
        *,
        concurrency: int = 64,
        shared: SharedWorld | None = None,
        caller: TargetCaller | None = None,
        run_name: str = "the run function",
        most_blocked_seconds: float = math.inf,
        most_idle_seconds: float = math.inf,
        picture_token: int | None = None,
        closing: Callable[[], None] | None = None,
        agents: Sequence[Agent] = (),
    ) -> None:
        """concurrency: trajectories that are played at once.   run_name: what the job calls `run`.
        most_blocked_seconds: how long a run function may hold up the event loop before the job ends.
        most_idle_seconds: how long it may wait for something else than turns and calls before its trajectory fails.
        picture_token: as in `Policy`. closing: called in the event loop at the end. agents: of a team."""
        self._picture_token, self._closing, self._agents = picture_token, closing, tuple(agents)
        self._engine, self._run, self._renderer, self._bounds = engine, run, renderer, bounds
        self.concurrency, self.shared, self._caller = concurrency, shared or SharedWorld(), caller
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None
        self._run_name, self._most_blocked_seconds = run_name, most_blocked_seconds
        self._most_idle_seconds = most_idle_seconds
        self._is_blocked = False
        """Whether the event loop was given up, with its thread."""
        self.longest_blocked_seconds = 0.0
        """How long the event loop was held up in the last play."""
        self.num_redrawn = self.num_tokens = 0
        """Groups of the last play that were drawn again, and its tokens that were sampled."""
        self._rounds: Game | None = None
        """Whose trajectories go on in the next round of `rollout.partial`."""

    def play(self, play: Play, copy: CopyOfRanks) -> list[Trajectory]:
        """All trajectories, in the order of their groups; in a round of `rollout.partial` those of groups that are
        complete, while the others wait. None on a peer of a copy, which helps to generate them. Every rank of the copy
        calls it alike. Nothing else may be running in the engine.

        Raises BadData as the engine does, InvalidJob for what of the job no trajectory can be played with, LoopBlocked
        for a run function that holds up the event loop.
        """
        if not copy.is_leader:
            self._follow(play, copy)
            return []
        watch = self._watch()
        game = self._game_of(play, watch)
        watch.start()
        try:
            self._lead(game, play, copy)
        except LoopBlocked:
            self._is_blocked = True
            raise
        except BaseException:
            self._give_up(game)
            raise
        finally:
            watch.stop()
        self.num_redrawn, self.longest_blocked_seconds = game.num_redrawn, watch.longest_seconds
        self.num_tokens = game.num_tokens
        return game.results()

    def under_way(self) -> dict[int, Turns]:
        """By trajectory, the turns of groups that were not complete after the last round of `rollout.partial`."""
        return {} if self._rounds is None else self._rounds.under_way()

    def _game_of(self, play: Play, watch: LoopWatch) -> Game:
        """That of the round before, whose trajectories go on; otherwise a new one."""
        if play.rounds is not None and self._rounds is not None:
            self._rounds.begin(play, watch)
            return self._rounds
        player = Player(
            self._run,
            self._renderer,
            self._bounds,
            self.shared,
            self._caller,
            self._picture_token,
            self._agents,
            self._most_idle_seconds,
        )
        game = Game(
            play,
            player,
            watch,
            self._started(),
            concurrency=self.concurrency,
            wake=self._engine.wake,
            version=lambda: self.version,
        )
        if play.rounds is not None:
            self._rounds = game
        return game

    def _give_up(self, game: Game) -> None:
        """End what is under way."""
        if game is self._rounds:
            self._rounds = None
        game.cancel()
        if game.running:
            self._engine.abort(np.array(sorted(game.running), np.int64))

    def close(self) -> None:
        """End the processes of tools and environments, and the thread of the event loop; one that is blocked ends with
        the worker."""
        if self._rounds is not None and not self._is_blocked:
            self._give_up(self._rounds)
        if self._caller is not None and not self._is_blocked:
            self.prepare(self._caller.close())
        if self.shared.programs is not None and not self._is_blocked:
            self.prepare(self.shared.programs.close())
        if self._closing is not None and not self._is_blocked:
            self.prepare(_called(self._closing))
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            if not self._is_blocked:
                self._thread.join()
            self._loop = self._thread = None

    @property
    def version(self) -> int:
        """Policy version of the engine."""
        return self._engine.version

    def prepare(self, coroutine: Coroutine[Any, Any, Value]) -> Value:
        """Wait in this thread for a coroutine of the event loop, and what it gives."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._started()).result()

    def _watch(self) -> LoopWatch:
        loop = self._started()
        assert self._thread is not None
        return LoopWatch(loop, self._thread, self._run_name, self._most_blocked_seconds)

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = Thread(target=_run_until_stopped, args=(self._loop,), name="conversations", daemon=True)
            self._thread.start()
        return self._loop

    # ---- the engine's thread

    def _lead(self, game: Game, play: Play, copy: CopyOfRanks) -> None:
        game.start()
        is_last = False
        while not is_last:
            commands = shared_commands(copy, lambda: game.next_commands(self._is_idle))
            is_last = commands.is_last
            ended = self._obey(commands, play.sampling)
            game.deliver(ended)
            if (partial := self._peek(commands, ended)) is not None:
                game.tell(*partial)

    def _follow(self, play: Play, copy: CopyOfRanks) -> None:
        is_last = False
        while not is_last:
            commands = shared_commands(copy, _of_the_leader)
            is_last = commands.is_last
            self._peek(commands, self._obey(commands, play.sampling))

    def _obey(self, commands: EngineCommands, sampling: Sampling) -> EndedRequests | None:
        if len(commands.aborted):
            self._engine.abort(commands.aborted)
        if len(commands.released):
            self._engine.release(commands.released)
        if len(commands.row_ids):
            self._engine.submit(commands.requests(sampling))
        if self._is_idle:
            return None
        ended = self._engine.advance(STEPS_UNHEARD if len(commands.heard) else None)
        if self._bounds.turns > 1 and len(ended):
            self._hold(ended)
        return ended

    def _peek(self, commands: EngineCommands, ended: EndedRequests | None) -> tuple[Indices, PartialResponses] | None:
        """What there is of rows that go on, and of which somebody wants to know. All ranks of a copy look."""
        if not len(commands.heard):
            return None
        rows = commands.heard if ended is None else np.setdiff1d(commands.heard, ended.row_ids)
        return (rows, self._engine.peek(rows)) if len(rows) else None

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


async def _called(function: Callable[[], None]) -> None:
    function()


def _run_until_stopped(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


def _of_the_leader() -> EngineCommands:
    raise AssertionError("peers give no commands")
