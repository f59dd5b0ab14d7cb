"""Background work of a data buffer: small thread pools, threads that call peers, and no exception unreported."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from typing import Any

from rljob_worker.databuffer.protocol.errors import Bug
from rljob_worker.errors import RLJobError

Job = Callable[[], None]
Fails = Callable[[RLJobError], None]


class Threads:
    """Where a data buffer has its time and its threads from; a simulation gives it others."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock

    def condition(self, lock: threading.RLock | None = None) -> threading.Condition:
        return threading.Condition(lock)

    def pool(self, name: str, num_threads: int) -> Executor:
        return ThreadPoolExecutor(num_threads, name)

    def wait(self, futures: Collection[Future[Any]], seconds: float) -> None:
        """Until all are done, or for so long."""
        wait(futures, seconds)

    def start(self, name: str, run: Job) -> None:
        threading.Thread(target=run, name=name, daemon=True).start()


THREADS = Threads()


def run_guarded(what: str, job: Job, fails: Fails) -> None:
    """Run `job`; anything it raises goes to `fails`: somebody waits for it."""
    try:
        job()
    except RLJobError as error:
        fails(error)
    except BaseException as error:
        fails(Bug(f"{what}: {error!r}"))


class Work:
    """Runs jobs that can go on at once. What a job raises goes to `fails`, named after what the job was."""

    def __init__(self, name: str, num_threads: int, fails: Fails, threads: Threads = THREADS) -> None:
        self._fails = fails
        self._pool = threads.pool(name, num_threads)
        # one thread from the start: where the system gives no more later, work is slow and does not stop
        self._pool.submit(lambda: None)

    def submit(self, what: str, job: Job) -> None:
        """Run `job` when a thread is free. After `close` nothing is run."""
        try:
            self._pool.submit(run_guarded, what, job, self._fails)
        except RuntimeError:  # shut down: nobody waits for this any more; or no new thread: an older one will run it
            return

    def do(self, what: str, job: Job, *, is_small: bool) -> None:
        """Run a small `job` here and now: handing it over takes longer. Others when a thread is free."""
        if is_small:
            run_guarded(what, job, self._fails)
        else:
            self.submit(what, job)

    def close(self) -> None:
        """Start no more work."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class Timer:
    """Calls due later, on one thread; they must return at once. What one raises goes to `fails`."""

    def __init__(self, fails: Fails, threads: Threads = THREADS) -> None:
        self._fails = fails
        self._clock = threads.clock
        self._changed = threads.condition()
        self._due: list[tuple[float, int, Job]] = []
        self._number = 0
        self._closed = False
        threads.start("timer", self._run)

    def after(self, seconds: float, call: Job) -> None:
        with self._changed:
            self._number += 1
            heapq.heappush(self._due, (self._clock() + seconds, self._number, call))
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        while (call := self._next()) is not None:
            run_guarded("what was due later", call, self._fails)

    def _next(self) -> Job | None:
        with self._changed:
            while not self._closed:
                left = self._due[0][0] - self._clock() if self._due else None
                if left is not None and left <= 0:
                    return heapq.heappop(self._due)[2]
                self._changed.wait(left)
            return None


class CallThreadPool:
    """A few threads for calls that may hang. Once half of them are out, calls should be short: those that hang then
    give their threads back soon."""

    def __init__(self, name: str, num_threads: int, fails: Fails, threads: Threads = THREADS) -> None:
        self._num_threads = num_threads
        self._work = Work(name, num_threads, fails, threads)
        self._lock = threading.Lock()
        self._num_out = 0

    def submit(self, what: str, job: Callable[[bool], None]) -> None:
        """Run `job` when a thread is free; it is called with whether to hurry."""
        self._work.submit(what, lambda: self._run(job))

    def close(self) -> None:
        self._work.close()

    def _run(self, job: Callable[[bool], None]) -> None:
        with self._lock:
            self._num_out += 1
            hurried = 2 * self._num_out > self._num_threads
        try:
            job(hurried)
        finally:
            with self._lock:
                self._num_out -= 1
