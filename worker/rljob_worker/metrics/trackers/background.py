"""A tracker whose server may be slow, hang or fail: it works in a thread of its own, and no step waits for it."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rljob_worker.metrics.trackers.tracker import FAILED_SECONDS, Tracker

log = logging.getLogger(__name__)

MAX_WAITING = 256
"""Calls that wait for the tracker. A table of samples has up to 1 MiB, so they take at most 256 MiB."""
CLOSE_SECONDS = 60.0
"""How long the end of a run waits for what is still on its way."""
FIRST_RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 300.0
MAX_WARNINGS = 10
"""Failures that are logged one by one; the rest are counted."""

Call = Callable[[Tracker], None]


class BackgroundTracker:
    """Passes calls on, in order. What fails is warned about and left out; what finds no room is counted and logged."""

    def __init__(
        self,
        name: str,
        open_tracker: Callable[[], Tracker],
        *,
        max_waiting: int = MAX_WAITING,
        close_seconds: float = CLOSE_SECONDS,
        failed_seconds: float = FAILED_SECONDS,
        first_retry_seconds: float = FIRST_RETRY_SECONDS,
    ) -> None:
        """open_tracker: called in the thread, again and again until it succeeds, with growing pauses."""
        self._name, self._open = name, open_tracker
        self._max_waiting, self._retry_seconds = max_waiting, first_retry_seconds
        self._close_seconds, self._failed_seconds = close_seconds, failed_seconds
        self._calls: deque[Call] = deque()
        self._changed = threading.Condition()
        self._is_closing = self._has_failed = False
        self._num_lost = self._num_failed = 0
        self._thread = threading.Thread(target=self._run, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def log(self, step: int, metrics: Mapping[str, float], samples: Sequence[Mapping[str, Any]]) -> None:
        self._post(lambda tracker: tracker.log(step, metrics, samples))

    def upload(self, path: Path, name: str) -> None:
        self._post(lambda tracker: tracker.upload(path, name))

    def cut_back(self, step: int) -> None:
        self._post(lambda tracker: tracker.cut_back(step))

    def close(self, *, failed: bool = False) -> None:
        """Wait a while for the rest, less after an error; then leave it, with a warning."""
        timeout_seconds = self._failed_seconds if failed else self._close_seconds
        with self._changed:
            self._is_closing, self._has_failed = True, failed
            self._changed.notify_all()
        self._thread.join(timeout_seconds)
        if self._thread.is_alive():
            log.warning(
                "%s did not finish within %.0f s of the run's end; what it has not sent is in metrics.jsonl and "
                "samples.jsonl",
                self._name, timeout_seconds,
            )  # fmt: skip
        if self._num_lost or self._num_failed:
            log.warning(
                "%s: %d calls failed, and %d found no room because it was slow", self._name, self._num_failed,
                self._num_lost,
            )  # fmt: skip

    def _post(self, call: Call) -> None:
        with self._changed:
            if len(self._calls) < self._max_waiting:
                self._calls.append(call)
                self._changed.notify_all()
                return
            self._num_lost += 1
        if self._num_lost == 1:
            log.warning("%s is too slow: %d calls wait for it, and steps are left out", self._name, self._max_waiting)

    def _run(self) -> None:
        tracker = self._opened()
        if tracker is None:
            return
        while (call := self._next()) is not None:
            self._try(call, tracker)
        self._try(lambda closed: closed.close(failed=self._has_failed), tracker)

    def _opened(self) -> Tracker | None:
        """The tracker; None where it cannot be had before the run ends."""
        pause = self._retry_seconds
        while True:
            try:
                return self._open()
            except Exception as error:  # a library's, about anything
                self._warn(error, "cannot be opened, and is tried again")
            with self._changed:
                if self._changed.wait_for(lambda: self._is_closing, pause):
                    return None
            pause = min(2 * pause, LONGEST_RETRY_SECONDS)

    def _next(self) -> Call | None:
        with self._changed:
            self._changed.wait_for(lambda: self._calls or self._is_closing)
            return self._calls.popleft() if self._calls else None

    def _try(self, call: Call, tracker: Tracker) -> None:
        try:
            call(tracker)
        except Exception as error:
            self._warn(error, "failed, and the run goes on without what it was sent")

    def _warn(self, error: Exception, words: str) -> None:
        self._num_failed += 1
        if self._num_failed <= MAX_WARNINGS:
            log.warning("%s %s: %s: %s", self._name, words, type(error).__name__, error)
