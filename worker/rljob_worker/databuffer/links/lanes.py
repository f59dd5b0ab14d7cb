"""Threads that call peers."""

from __future__ import annotations

import threading
from collections.abc import Callable

from rljob_worker.databuffer.work import THREADS, Fails, Threads, Work


class Lane:
    """A few threads for calls that may hang. Once half of them are out, calls should be short: those that hang then
    give their threads back soon."""

    def __init__(self, name: str, num_threads: int, fails: Fails, threads: Threads = THREADS) -> None:
        self._num_threads = num_threads
        self._work = Work(name, num_threads, fails, threads)
        self._lock = threading.Lock()
        self._num_out = 0

    def submit(self, what: str, job: Callable[[bool], None]) -> None:
        """Run `job` when a thread is free; it is told whether to hurry."""
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
