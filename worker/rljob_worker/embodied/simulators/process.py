"""A process of simulators as the worker's event loop knows it: calls and free slots. No I/O."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rljob_worker.embodied.simulators.settings import ActionBounds, FailureCause
from rljob_worker.embodied.simulators.shared_memory import ObservationMemory
from rljob_worker.sandbox.guardian.framing import Message
from rljob_worker.sandbox.guardian.loop_processes import LoopProcess

MOST_SENT = 2
"""Calls without an answer that a process has been sent: the one that it is at, and the next, so that it does not wait
while the worker takes an answer."""


class ProcessLost(Exception):
    """A call has no answer because its process is gone."""

    def __init__(self, cause: FailureCause, message: str, *, was_at_work: bool) -> None:
        """was_at_work: whether the process was at this call when it went, so that the call may be why."""
        super().__init__(message)
        self.cause: FailureCause = cause
        self.was_at_work = was_at_work


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """What an environment is to do."""

    message: Message
    seconds: float
    """How long its process may be at it."""
    actions: NDArray[np.float64] | None = None
    """[steps, dimensions]"""


@dataclass(eq=False, slots=True)
class PendingRequest:
    """A call without an answer."""

    number: int
    call: Call
    slot: int
    future: asyncio.Future[Any]
    """Becomes a frame, or tasks."""
    deadline: float = math.inf
    """By the event loop's clock, once the process is at it."""


@dataclass(eq=False, slots=True)
class SimulatorProcess(LoopProcess):
    """One process, its memory and its calls."""

    memory: ObservationMemory
    ready: asyncio.Future[ActionBounds]
    """Done once it has an environment; with InvalidJob or ProcessLost where it has none."""
    free_slots: list[int]
    waiting: deque[PendingRequest] = field(default_factory=deque)
    sent: deque[PendingRequest] = field(default_factory=deque)
    """What it was sent and has not answered: it is at the first of them."""
    timer: asyncio.TimerHandle | None = None
    """Looks at the deadline of the call it is at; it stays while the next ones have later deadlines."""

    @property
    def is_ready(self) -> bool:
        """Whether it takes episodes."""
        return self.lost is None and self.ready.done() and self.ready.exception() is None

    def next_to_send(self) -> PendingRequest | None:
        """The next call that somebody still waits for, if there is room for it; it counts as sent then. An environment
        has one at a time: one that nobody waits for any more may still be using its part of the memory."""
        while self.waiting and self.waiting[0].future.done():
            self.waiting.popleft()
        if not self.waiting or len(self.sent) == MOST_SENT:
            return None
        if any(request.slot == self.waiting[0].slot for request in self.sent):
            return None
        self.sent.append(self.waiting.popleft())
        return self.sent[-1]

    def take_unanswered(self) -> list[tuple[PendingRequest, bool]]:
        """All calls without an answer, and whether it was at them; it has none then."""
        calls = [(request, number == 0) for number, request in enumerate(self.sent)]
        calls += [(request, False) for request in self.waiting]
        self.sent.clear()
        self.waiting.clear()
        return [call for call in calls if not call[0].future.done()]


@dataclass(frozen=True, slots=True)
class Slot:
    """A place for one environment."""

    process: SimulatorProcess
    number: int


def bounds_of(values: list[float | None], unbounded: float) -> NDArray[np.float64]:
    """Bounds of actions as a process sends them, [dimensions]. unbounded: what stands for None."""
    return np.array([unbounded if value is None else value for value in values], np.float64)
