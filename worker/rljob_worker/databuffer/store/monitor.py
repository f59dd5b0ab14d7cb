"""The one lock around the state of a data buffer, the waits of its workers, and the first cause of its end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from rljob_worker.databuffer.protocol.worker_answers import NotYet
from rljob_worker.databuffer.protocol.worker_calls import WaitingCall
from rljob_worker.databuffer.work import THREADS, Threads
from rljob_worker.errors import RLJobError

T = TypeVar("T")


class _Waiter:
    """A call that waits; the thread that changes the state checks whether it can go on."""

    def __init__(self, ready: Callable[[], Any], woken: threading.Condition) -> None:
        self._ready = ready
        self.woken = woken
        self.value: Any = None
        self.error: Exception | None = None

    @property
    def is_over(self) -> bool:
        return self.value is not None or self.error is not None

    def result(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value

    def look(self) -> None:
        if self.is_over:
            return
        try:
            self.value = self._ready()
        except Exception as error:  # the waiter's, and not of the thread that changed something
            self.error = error
        if self.is_over:
            self.woken.notify()


class Monitor:
    """State is read and changed under `change`; after every change those who wait and can go on are woken, no others.

    Only calls of workers of this host wait here, each bounded: everything else is a state that an event moves on.
    """

    def __init__(self, threads: Threads = THREADS) -> None:
        self._threads = threads
        self._lock = threading.RLock()
        self._depth = 0
        self._waiting: list[_Waiter] = []
        self._cause: RLJobError | None = None

    @contextmanager
    def change(self) -> Iterator[None]:
        """Hold the lock; at the end, wake those who can go on, in the order in which they came."""
        with self._lock:
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
            if not self._depth:  # else the state is between two others
                self._wake()

    @contextmanager
    def look(self) -> Iterator[None]:
        """Hold the lock without changing anything."""
        with self._lock:
            yield

    def wait(self, ready: Callable[[], T | None], seconds: float) -> T | None:
        """What `ready` returns, called under the lock, once that is not None; None after `seconds`.

        What is there is given even when the data plane is broken; else that is raised, also in the middle of the wait.
        """
        end = self._threads.clock() + seconds
        with self._lock:
            waiter = _Waiter(ready, self._threads.condition(self._lock))
            waiter.look()
            self._waiting.append(waiter)
            try:
                while not waiter.is_over:
                    self.check()
                    left = end - self._threads.clock()
                    if left <= 0:
                        return None
                    waiter.woken.wait(left)
            finally:
                self._waiting.remove(waiter)
            value: T = waiter.result()
            return value

    def poll(self, request: WaitingCall, ready: Callable[[], T | None], late: Callable[[], RLJobError]) -> T | NotYet:
        """Wait for a worker's request: NotYet while it is to be retried, then raises what `late` returns."""
        result = self.wait(ready, request.held_seconds)
        if result is None and request.waited >= request.seconds:
            raise late()
        return NotYet() if result is None else result

    def _wake(self) -> None:
        for waiter in self._waiting:
            waiter.look()
            if self._cause is not None:
                waiter.woken.notify()

    @property
    def cause(self) -> RLJobError | None:
        """Why the data plane is broken, if it is."""
        return self._cause

    def check(self) -> None:
        """Raise the cause if the data plane is broken: an error of its own every time, tracebacks do not add up."""
        if self._cause is not None:
            raise type(self._cause)(*self._cause.args)

    def break_down(self, cause: RLJobError) -> bool:
        """Nobody waits any longer: waits raise `cause`. Only the first counts; returns whether this was it."""
        with self.change():
            if self._cause is not None:
                return False
            self._cause = cause
            return True
