"""Ends a trajectory whose run function waits for neither the policy nor the world, such as for an event that never
comes. Turns and calls have limits of their own."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from rljob_worker.conversations.playing.loop_watch import place_of
from rljob_worker.conversations.playing.turns import Turns

CAUSE = "idle"


@contextmanager
def idle_limit(turns: Turns, seconds: float) -> Iterator[None]:
    """A block of the current task in which a trajectory may be idle for so many seconds; then it has failed, and the
    block is left."""
    if math.isinf(seconds):
        yield
        return
    with _IdleTimer(turns, seconds):
        yield


class _IdleTimer:
    """Looks twice in the time: a trajectory that was idle in both looks, and did nothing in between, has failed."""

    def __init__(self, turns: Turns, seconds: float) -> None:
        self._turns, self._seconds = turns, seconds
        task = asyncio.current_task()
        assert task is not None
        self._task: asyncio.Task[Any] = task
        self._before: tuple[int, int] | None = None
        """Turns and calls there were when it was seen idle; None: it was not."""

    def __enter__(self) -> None:
        self._arm()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        self._timer.cancel()
        is_ended = isinstance(error, asyncio.CancelledError) and self._turns.trajectory.failed == CAUSE
        if is_ended:
            self._task.uncancel()
        return is_ended

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._seconds / 2, self._look)

    def _look(self) -> None:
        trajectory = self._turns.trajectory
        done = (trajectory.num_started, trajectory.num_calls) if self._turns.is_idle else None
        if done is not None and done == self._before:
            trajectory.fail(
                CAUSE, f"waited for neither the policy nor the world for {self._seconds / 2:g} s{self._place()}"
            )
            self._task.cancel()
        self._before = done
        self._arm()

    def _place(self) -> str:
        """Where the run function waits."""
        frames = []
        coroutine: Any = self._task.get_coro()
        while (frame := getattr(coroutine, "cr_frame", None)) is not None:
            frames.append((frame, frame.f_lineno))
            coroutine = coroutine.cr_await
        return place_of(reversed(frames))
