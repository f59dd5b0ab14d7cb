"""Work on checkpoints that no step waits for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager


class Background:
    """One piece of work at a time, in a thread that ends with it. Its error is raised to the next caller."""

    def __init__(self, name: str, clock: Callable[[], float] = time.perf_counter) -> None:
        """name: of the threads."""
        self._name = name
        self._clock = clock
        self._work: Future[None] | None = None
        self._seconds: list[float] = []

    def start(self, work: Callable[[], None]) -> None:
        """Begin it once what was begun before has ended. Raises what that broke by."""
        self.wait()
        self._work = Future()
        threading.Thread(target=self._run, args=(self._work, work), name=self._name).start()

    def wait(self) -> None:
        """Until nothing is under way. Raises what it broke by."""
        if self._work is not None:
            self._work.result()

    @property
    def error(self) -> BaseException | None:
        """What it broke by, as far as that is known."""
        return self._work.exception() if self._work is not None and self._work.done() else None

    def check(self) -> None:
        """Raises what it broke by, if that is known; waits for nothing."""
        if self.error is not None:
            raise self.error

    def leave(self, seconds: float) -> None:
        """Give what is under way so long to end, whether well or not."""
        if self._work is not None:
            wait([self._work], seconds)

    @contextmanager
    def finished_within(self, seconds: float) -> Iterator[None]:
        """Where the block fails, what is under way has so long to end."""
        try:
            yield
        except BaseException:
            self.leave(seconds)
            raise

    def take_seconds(self) -> list[float]:
        """How long each piece took that has ended well since this was last asked."""
        taken, self._seconds = self._seconds, []
        return taken

    def _run(self, result: Future[None], work: Callable[[], None]) -> None:
        started = self._clock()
        try:
            work()
        except BaseException as error:
            result.set_exception(error)
        else:
            self._seconds.append(self._clock() - started)
            result.set_result(None)
