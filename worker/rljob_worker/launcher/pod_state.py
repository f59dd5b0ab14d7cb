"""The latest numbers of a pod's workers and the heartbeat of the launcher's main loop, which the HTTP server reads."""

import json
import threading
import time
from typing import Any

BEAT_SECONDS = 1.0
"""How often the main loop says that it is alive."""
STALE_SECONDS = 15.0
"""Without a beat for so long, the main loop counts as stuck."""


class PodState:
    """Thread-safe; knows nothing of HTTP or pipes."""

    def __init__(self, attempt: int, num_workers: int = 0) -> None:
        self.num_alive = num_workers
        """Workers that have not ended."""
        self._lock = threading.Lock()
        self._metrics: dict[int, dict[str, float]] = {}
        self._progress: dict[str, Any] = {"phase": "Starting", "attempt": attempt, "step": 0}
        self._fault: str | None = None
        self._beat_seconds = time.monotonic()

    def record(self, rank: int, line: bytes) -> None:
        """Take one line of a worker's pipe; a line that is not JSON is a bug of the worker's, and loses only itself."""
        try:
            snapshot = json.loads(line)
        except ValueError:
            return
        with self._lock:
            self._metrics.setdefault(rank, {}).update(snapshot.get("metrics") or {})
            self._progress |= snapshot.get("progress") or {}

    def beat(self) -> None:
        """Say that the main loop runs."""
        self._beat_seconds = time.monotonic()

    def fail(self, fault: str) -> None:
        """Say why this pod is no longer healthy."""
        self._fault = self._fault or fault

    def fault(self) -> str | None:
        """Why this pod is unhealthy, or None."""
        silent_seconds = time.monotonic() - self._beat_seconds
        if self._fault is None and silent_seconds > STALE_SECONDS:
            return f"the launcher's main loop has not run for {silent_seconds:.0f} s"
        return self._fault

    def metrics(self) -> dict[int, dict[str, float]]:
        """Latest values by rank, then by file name."""
        with self._lock:
            return {rank: dict(values) for rank, values in self._metrics.items()}

    def progress(self) -> dict[str, Any]:
        """What the lead worker said last; its phase is Starting until then."""
        with self._lock:
            return dict(self._progress)
