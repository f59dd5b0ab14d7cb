"""An event loop with virtual time, and what looks like threads to those who run on it: greenlets that take turns.

A task goes on until it waits (for a condition, for an answer, for a future); then the loop runs the next event. Events
of the same time come in an order that the seed draws, and how long the start of a task takes is drawn as well.
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Executor, Future
from functools import partial
from random import Random
from typing import Any, Protocol

from greenlet import GreenletExit, getcurrent, greenlet

from rljob_worker.databuffer.work import Job, Threads

START = 1000.0
"""No clock begins at 0."""
NUM_EVENTS = 1_000_000
"""More than that, and something goes on for ever."""


class Owner(Protocol):
    """Whose event it is."""

    is_dead: bool
    """What it would still do is not done."""
    frozen_until: float
    """What it would do before is done then."""


class Loop:
    """Events by time."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now = START
        self.is_closed = False
        self.scheduler = getcurrent()
        self._events: list[tuple[float, float, int, Owner | None, Job]] = []
        self._num_events = 0
        self.submitted: list[str] = []
        """All work that was given to a pool."""
        self._num_run = 0
        self._tasks: set[greenlet] = set()

    def at(self, when: float, call: Job, owner: Owner | None = None) -> None:
        """Run `call` at a time; if its owner is frozen then, once it is not."""
        self._num_events += 1
        heapq.heappush(self._events, (when, self.random.random(), self._num_events, owner, call))

    def after(self, seconds: float, call: Job, owner: Owner | None = None) -> None:
        self.at(self.now + seconds, call, owner)

    def spawn(self, job: Job, owner: Owner | None, seconds: float = 0.0) -> None:
        """A task that begins so much later."""
        self.after(seconds, partial(self._begin, job), owner)

    def run(self, is_over: Callable[[], bool]) -> None:
        """Until `is_over`, or nothing is left to happen."""
        while self._events and not is_over():
            when, _, number, owner, call = heapq.heappop(self._events)
            assert number < NUM_EVENTS, f"{NUM_EVENTS} events until {self.now - START:.1f} s"
            if owner is not None and owner.is_dead:
                continue
            if owner is not None and owner.frozen_until > when:
                self.at(owner.frozen_until + self.moment(), call, owner)
                continue
            self.now = max(self.now, when)
            self._num_run += 1
            call()

    def settle(self, quiet_seconds: float, limit: int | None = None) -> None:
        """Until nothing is due for so long, or for that many events."""
        latest = float("inf") if limit is None else self._num_run + limit
        self.run(lambda: self._events[0][0] > self.now + quiet_seconds or self._num_run >= latest)

    def close(self) -> None:
        """End all tasks, wherever they wait."""
        self.is_closed = True
        while self._tasks:
            self._tasks.pop().throw(GreenletExit)

    def moment(self) -> float:
        """Short for a computer, and sometimes not so short."""
        return 0.0001 + 0.02 * float(self.random.random()) ** 4

    def switch(self) -> Any:
        """Let the loop go on; returns what the task is woken with."""
        if self.is_closed:
            raise GreenletExit
        assert getcurrent() is not self.scheduler, "the loop itself waits for nothing"
        return self.scheduler.switch()

    def sleep(self, seconds: float, owner: Owner | None = None) -> None:
        pause = Pause(self, owner)
        pause.wait(seconds)

    def _begin(self, job: Job) -> None:
        task = greenlet(partial(self._run, job), self.scheduler)
        self._tasks.add(task)
        task.switch()

    def _run(self, job: Job) -> None:
        try:
            job()
        finally:
            self._tasks.discard(getcurrent())


class Pause:
    """One wait of the task that makes it; only the first to wake it does."""

    def __init__(self, loop: Loop, owner: Owner | None) -> None:
        self._loop, self._owner = loop, owner
        self._task = getcurrent()
        self.is_over = False

    def wake(self, value: Any, seconds: float = 0.0) -> None:
        """The wait ends with `value`, so much later."""
        if not self.is_over:
            self.is_over = True
            self._loop.after(seconds, partial(self._task.switch, value), self._owner)

    def wait(self, seconds: float | None = None) -> Any:
        """What it is woken with; None after `seconds`."""
        if seconds is not None:
            self._loop.after(seconds, self._late, self._owner)
        return self._loop.switch()

    def _late(self) -> None:
        if not self.is_over:
            self.is_over = True
            self._task.switch(None)


class Condition:
    """As of `threading`, for tasks of one owner."""

    def __init__(self, loop: Loop, owner: Owner, lock: Any = None) -> None:
        self._loop, self._owner = loop, owner
        self._lock = threading.RLock() if lock is None else lock
        self._waiting: deque[Pause] = deque()

    def __enter__(self) -> None:
        self._lock.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._lock.__exit__(*error)

    def wait(self, timeout: float | None = None) -> bool:
        pause = Pause(self._loop, self._owner)
        self._waiting.append(pause)
        self._lock.release()
        try:
            return pause.wait(timeout) is not None
        finally:
            self._lock.acquire()
            if pause in self._waiting:
                self._waiting.remove(pause)

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        end = None if timeout is None else self._loop.now + timeout
        while not (result := predicate()):
            left = None if end is None else end - self._loop.now
            if left is not None and left <= 0:
                return result
            self.wait(left)
        return True

    def notify(self, n: int = 1) -> None:
        woken = 0
        while self._waiting and woken < n:
            pause = self._waiting.popleft()
            woken += not pause.is_over
            pause.wake(True)

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class Pool(Executor):
    """So many tasks at once; the others wait their turn."""

    def __init__(self, loop: Loop, owner: Owner, num_threads: int) -> None:
        self._loop, self._owner = loop, owner
        self._num_idle = num_threads
        self._queue: deque[Job] = deque()
        self._is_closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        if self._is_closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        self._loop.submitted += [arg for arg in args if isinstance(arg, str)]
        future = Future[Any]()
        self._queue.append(partial(_fulfil, future, partial(fn, *args, **options)))
        if self._num_idle:
            self._num_idle -= 1
            self._loop.spawn(self._work, self._owner, self._loop.moment())
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._is_closed = True
        if cancel_futures:
            self._queue.clear()

    def _work(self) -> None:
        while self._queue:
            self._queue.popleft()()
        self._num_idle += 1


def _fulfil(future: Future[Any], call: Callable[[], Any]) -> None:
    try:
        future.set_result(call())
    except Exception as error:
        future.set_exception(error)


class SimulatedThreads(Threads):
    """Threads of one data buffer."""

    def __init__(self, loop: Loop, owner: Owner) -> None:
        super().__init__(lambda: loop.now)
        self._loop, self._owner = loop, owner

    def condition(self, lock: Any = None) -> Any:
        return Condition(self._loop, self._owner, lock)

    def pool(self, name: str, num_threads: int) -> Pool:
        return Pool(self._loop, self._owner, num_threads)

    def wait(self, futures: Collection[Future[Any]], seconds: float) -> None:
        pause, left = Pause(self._loop, self._owner), list(futures)

        def done(future: Future[Any]) -> None:
            left.remove(future)
            if not left:
                pause.wake(True)

        for future in futures:
            future.add_done_callback(done)
        pause.wait(seconds)

    def start(self, name: str, run: Job) -> None:
        self._loop.spawn(run, self._owner)
