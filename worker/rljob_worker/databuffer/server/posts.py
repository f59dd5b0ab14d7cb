"""What the workers of this host last said they were doing: a worker posts, a peer that waits for it asks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any


class Posts:
    """Last status of every local rank."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._posts: dict[int, tuple[float, dict[str, Any]]] = {}

    def post(self, rank: int, status: Mapping[str, Any]) -> None:
        with self._lock:
            self._posts[rank] = (self._clock(), dict(status))

    def status(self, rank: int) -> dict[str, Any]:
        """The last post and its age in `age_seconds`; empty when there was none."""
        with self._lock:
            if rank not in self._posts:
                return {}
            when, status = self._posts[rank]
        return {**status, "age_seconds": round(self._clock() - when, 1)}

    def ranks(self) -> list[int]:
        with self._lock:
            return sorted(self._posts)

    def last_words(self, rank: int) -> str:
        """One line for an error message."""
        status = self.status(rank)
        if not status:
            return "it has not said anything yet"
        age = status.pop("age_seconds")
        said = ", ".join(f"{name} {value}" for name, value in status.items())
        return f"last said {age:.0f} s ago: {said}"
