"""Where a job stood whenever its last pod had ended a step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from process_usage import cpu_seconds

from rljob_worker.tests.namespaces import Place
from scaled_jobs.load import JobLoad, Measured


@dataclass(frozen=True)
class Mark:
    """At one moment: the clock, processor seconds of every process so far, (sent, received) of every link."""

    when: float
    cpu: list[float]
    links: list[tuple[int, int]]

    @staticmethod
    def now(processes: Sequence[int], places: Sequence[Place]) -> Mark:
        return Mark(time.monotonic(), list(map(cpu_seconds, processes)), [place.passed() for place in places])


class Marks:
    """A mark at the end of every step, once all pods have ended it."""

    def __init__(self, pods: int, look: Callable[[], Mark]) -> None:
        self._pods, self._look = pods, look
        self._lock = threading.Lock()
        self._counts: dict[int, int] = {}
        self._marks: list[Mark] = []

    def passed(self, step: int) -> None:
        """A pod has ended a step."""
        with self._lock:
            self._counts[step] = self._counts.get(step, 0) + 1
            if self._counts[step] == self._pods:
                self._marks.append(self._look())

    def measured(self, load: JobLoad, memory: int) -> Measured:
        """From the first mark to the last. The link is the busiest, and so is the data buffer; the last process is that
        of the workers."""
        begin, end = self._marks[0], self._marks[-1]
        seconds, steps = end.when - begin.when, len(self._marks) - 1
        cpu = [after - before for before, after in zip(begin.cpu, end.cpu, strict=True)]
        passed = [(b[0] - a[0], b[1] - a[1]) for a, b in zip(begin.links, end.links, strict=True)]
        return Measured(
            load=load,
            step_seconds=seconds / steps,
            steps=steps,
            cores=sum(cpu) / seconds,
            busiest_seconds=max(cpu[:-1]) / steps,
            sent=max(sent for sent, _ in passed) / steps,
            received=max(received for _, received in passed) / steps,
            memory=memory,
        )
