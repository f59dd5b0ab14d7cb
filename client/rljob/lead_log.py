"""The log of a job's lead worker while the job is followed: read in a thread of its own, attempt after attempt."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

from rljob.errors import ClusterError
from rljob.job import Job

_MAX_LINES = 10_000
"""Lines that wait to be shown; a reader that is slower than the log holds the log up, and not our memory."""


class Logs(Protocol):
    """The part of the client that is used."""

    def logs(self, name: str, *, follow: bool = False) -> Iterator[str]: ...


class LeadLog:
    """One thread for each attempt, which ends with its pod's log; the last one's lines are drained at the end."""

    def __init__(self, client: Logs, say: Callable[[str], None]) -> None:
        self._client, self._say = client, say
        self._lines: queue.Queue[str] = queue.Queue(_MAX_LINES)
        self._attempt = 0
        self._thread: threading.Thread | None = None

    def notice(self, job: Job) -> None:
        """Begin to read where a new attempt runs, and show what has come."""
        if job.phase == "Running" and job.attempt != self._attempt:
            self._attempt = job.attempt
            self._thread = threading.Thread(target=self._read, args=(job.name,), daemon=True)
            self._thread.start()
        self.show()

    def show(self) -> None:
        """Say all lines that have come."""
        while not self._lines.empty():
            self._say(self._lines.get())

    def close(self, seconds: float = 5.0) -> None:
        """Show the rest, as far as it comes within a time."""
        if self._thread is not None:
            self._thread.join(seconds)
        self.show()

    def _read(self, name: str) -> None:
        try:
            for line in self._client.logs(name, follow=True):
                self._lines.put(line)
        except ClusterError as error:
            self._lines.put(f"(no more of the log: {error})")
