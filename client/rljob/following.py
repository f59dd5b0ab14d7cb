"""What is shown of a job that is followed: a line for each thing that changed, and its lead worker's log."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

from rljob.client import Client
from rljob.errors import ClusterError
from rljob.job import Job

_MAX_LINES = 10_000
"""Lines that wait to be shown; a reader that is slower than the log holds the log up, and not our memory."""


def status_lines(before: Job | None, job: Job) -> Iterator[str]:
    """Lines on what is new since the look before."""
    if before is None or (job.phase, job.attempt) != (before.phase, before.attempt):
        attempt = f", attempt {job.attempt}" if job.attempt else ""
        yield f"{job.name}: {job.phase.lower()}{attempt}, {job.ready} pods ready"
    if job.reason and (before is None or (job.reason, job.message) != (before.reason, before.message)):
        yield f"{job.name}: {job.reason}: {job.message}"
    if job.step and (before is None or job.step != before.step):
        yield progress_line(job)


def progress_line(job: Job) -> str:
    """The last step in one line, as `rljob run` has it."""
    figures = {"reward": job.reward, **{name: job.metrics.get(key) for name, key in _FIGURES.items()}}
    parts = [f"step {job.step}/{job.total_steps}"]
    parts += [f"{name} {value:.3g}" for name, value in figures.items() if value is not None]
    return "  ".join(parts)


_FIGURES = {
    "validation": "validation/accuracy",
    "kl": "kl/reference",
    "length": "response_length/mean",
    "tokens/s": "throughput/tokens_per_second",
}
"""Names of metrics as people see them."""


def final_line(job: Job) -> str:
    """How it ended."""
    if job.phase == "Failed":
        return f"{job.name}: failed after {job.step} of {job.total_steps} steps: {job.reason}: {job.message}"
    return f"{job.name}: {job.phase.lower()} after {job.step} of {job.total_steps} steps"


class LeadLog:
    """The log of the lead worker, read in one thread for each attempt, which ends with its pod's log; the last one's
    lines are drained at the end."""

    def __init__(self, client: Client, say: Callable[[str], None]) -> None:
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
