"""Notices that a run function holds up the event loop: one that sleeps, computes or waits without `await`.

All trajectories of a worker share the loop, so that one of them stops all. What it does is looked at from the engine's
thread, which is another one.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import sysconfig
import time
import traceback
from collections.abc import Iterable
from threading import Thread
from types import FrameType

from rljob_worker.errors import InvalidJob

BEAT_SECONDS = 0.5
"""How often the loop says that it runs."""
NAMED_SECONDS = 5.0
"""A loop that is held up for longer is named in the log."""
TASK_NAME = "trajectory {}"
"""Names of tasks that play one."""
_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
_FIX = "wait with `await`, as `asyncio.sleep` does, and have what takes long done by a tool or by `asyncio.to_thread`"

log = logging.getLogger("rljob.conversations")


class LoopBlocked(InvalidJob):
    """The event loop is held up for so long that the job ends. Nothing that runs in it can be ended."""


class LoopWatch:
    """Watches one event loop, while conversations are played in it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, thread: Thread, run: str, most_seconds: float) -> None:
        """thread: of the loop. run: what the job calls its run function. most_seconds: after which the job ends."""
        self._loop, self._thread, self._run, self._most_seconds = loop, thread, run, most_seconds
        self._last = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self._is_named = False
        self.longest_seconds = 0.0
        """The longest time since `start` in which the loop ran nothing else."""

    def start(self) -> None:
        """Begin to watch; from the engine's thread."""
        self._last, self.longest_seconds = time.monotonic(), 0.0
        self._loop.call_soon_threadsafe(self._beat)

    def stop(self) -> None:
        """Watch no longer; from the engine's thread."""
        self._loop.call_soon_threadsafe(self._end)

    def check(self) -> None:
        """Name what holds up the loop, if something does; from the engine's thread. Raises LoopBlocked."""
        seconds = time.monotonic() - self._last
        if seconds < min(NAMED_SECONDS, self._most_seconds):
            return
        if seconds > self._most_seconds:
            raise LoopBlocked(f"rollout.conversation.run: {self._held(seconds)}; {_FIX}")
        if not self._is_named:
            self._is_named = True
            log.warning("%s, and all trajectories of this worker with it; %s", self._held(seconds), _FIX)

    def _beat(self) -> None:
        now = time.monotonic()
        self.longest_seconds = max(self.longest_seconds, now - self._last - BEAT_SECONDS)
        self._last, self._is_named = now, False
        self._end()
        self._timer = self._loop.call_later(BEAT_SECONDS, self._beat)

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _held(self, seconds: float) -> str:
        task = asyncio.current_task(self._loop)
        player = "a task of it" if task is None else task.get_name()
        return f"{self._run} has held up the event loop for {seconds:.0f} s in {player}{self._place()}"

    def _place(self) -> str:
        """The innermost line of the loop's thread that is in no library."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return place_of(traceback.walk_stack(frame) if frame is not None else ())


def place_of(frames: Iterable[tuple[FrameType, int]]) -> str:
    """The first line that is in no library, in words. frames: with their lines, the innermost first."""
    for frame, line in frames:
        if not frame.f_code.co_filename.startswith(_LIBRARIES):
            return f", at {frame.f_code.co_filename}:{line} in {frame.f_code.co_name}"
    return ""
