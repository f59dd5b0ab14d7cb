"""Memory that processes have for themselves alone, and how long a call takes."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

SAMPLE_SECONDS = 0.02


class ProcessWatch:
    """The most private memory of processes beyond what they have now."""

    def __init__(self, processes: list[int]) -> None:
        self.before = {process: private_bytes(process) for process in processes}
        self.most = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._done.wait(SAMPLE_SECONDS):
            self.most = max(self.most, *(private_bytes(p) - before for p, before in self.before.items()))

    def close(self) -> int:
        self._done.set()
        self._thread.join()
        return self.most


def private_bytes(process: int) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def median(call: Callable[[], object], rounds: int) -> float:
    """Seconds, the first call left out."""
    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])
