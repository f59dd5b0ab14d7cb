"""Tells the own sidecar what this worker is doing, without the worker ever waiting for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from rljob_worker.errors import RLJobError

Status = dict[str, Any]
INTERVAL_SECONDS = 0.1
"""A status may be this old; short stages between two posts are not told."""


class StatusPoster:
    """Posts the latest status from a thread of its own. Whoever waits for this worker reads it in the error message."""

    def __init__(self, post: Callable[[Status], None], interval_seconds: float = INTERVAL_SECONDS) -> None:
        self._post, self._interval_seconds = post, interval_seconds
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
