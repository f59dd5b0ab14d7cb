"""Tells the own sidecar what this worker is doing, and that it was asked to stop, without the worker waiting for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

from rljob_worker.errors import RLJobError

Status = dict[str, Any]
INTERVAL_SECONDS = 0.1
"""A status may be this old; short stages between two posts are not reported."""


class StatusPoster:
    """Posts the latest status from a thread of its own. Those that wait for this worker read it in the error
    message."""

    def __init__(self, send: Callable[[Status], None], interval_seconds: float = INTERVAL_SECONDS) -> None:
        self._post, self._interval_seconds = send, interval_seconds
        self._latest: Status = {}
        self._changed, self._closed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)
        self._thread.start()

    def __call__(self, status: Status) -> None:
        self._latest = status
        self._changed.set()

    def close(self) -> None:
        """No status is posted after this returns."""
        self._closed.set()
        self._changed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.is_set():
            self._changed.wait()
            self._changed.clear()
            try:
                if self._latest:
                    self._post(self._latest)
            except RLJobError:
                return  # the sidecar is gone: the worker finds out at its next put or get, with a better message
            self._closed.wait(self._interval_seconds)


class StopSignal:
    """Requests to stop, on their way from a signal handler to the lead."""

    def __init__(self) -> None:
        # its `put` is reentrant: a signal may come anywhere, in a `put` too
        self._requests: SimpleQueue[bool] = SimpleQueue()

    def request(self) -> None:
        """Ask the job to stop; for signal handlers, at any time."""
        self._requests.put(True)

    @contextmanager
    def passed_on(self, request_stop: Callable[[], None]) -> Iterator[None]:
        """Calls `request_stop` as soon as there is a request, in a thread of its own: no step is waited for."""
        thread = threading.Thread(target=self._pass_on, args=(request_stop,), name="stop", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._requests.put(False)
            thread.join()

    def _pass_on(self, request_stop: Callable[[], None]) -> None:
        while self._requests.get():
            try:
                request_stop()
            except RLJobError:
                return  # the sidecar is gone: the worker finds out by itself, and ends with a better message
