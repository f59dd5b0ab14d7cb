"""Rewards as the bookkeeping knows them, and their rows in chunks.

A chunk is rows of one reward that one process works through. A plain reward runs its chunk row by row, so a row starts
when the one before it ends; an async reward says itself which rows it has started, and takes more while they run.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

MAX_CHUNK_ROWS = 64

LONGEST_WAIT_SECONDS = 60.0
"""A call that is made again waits no longer, unless the first one does."""


NO_STEPS = "returned no `step_rewards`, which `spread: Steps` places"


@dataclass(frozen=True, slots=True)
class RewardCall:
    """What the bookkeeping knows of a reward."""

    name: str
    limit_seconds: float
    asynchronous: bool
    on_error: Literal["Fail", "Zero", "Retry"] = "Fail"
    retries: int = 0
    backoff_seconds: float = 1.0
    service: str | None = None
    """The service that it asks, which has failed when it is late: another call may find it well."""
    has_steps: bool = False
    """Whether its reward of a row is the sum of those of its steps, which it has to say."""

    def wait_seconds(self, num_failed: int) -> float:
        """The backoff before the call that follows this many failed ones."""
        return min(self.backoff_seconds * 2.0 ** (num_failed - 1), max(LONGEST_WAIT_SECONDS, self.backoff_seconds))


@dataclass(slots=True)
class RewardChunk:
    """Rows of one reward, at one process."""

    reward: int
    waiting: deque[int]
    running: dict[int, float] = field(default_factory=dict)
    """Row -> when it started, seconds."""
    dealt: float = 0.0
    """When the process last got rows of it, seconds."""
    alone: bool = False
    """Whether its row is suspected of ending its process, and gets one to itself."""

    @property
    def rows(self) -> list[int]:
        return [*self.running, *self.waiting]


def cut(reward: int, first: int, num_rows: int, processes: int, call: RewardCall) -> list[RewardChunk]:
    """Chunks small enough that processes finish together and few rows wait behind a slow one."""
    pieces = processes * (1 if call.asynchronous else 4)
    size = max(1, min(MAX_CHUNK_ROWS, -(-num_rows // pieces)))
    end = first + num_rows
    return [RewardChunk(reward, deque(range(start, min(start + size, end)))) for start in range(first, end, size)]
