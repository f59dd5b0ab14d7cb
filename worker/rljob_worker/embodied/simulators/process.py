"""A process of simulators as the worker's event loop knows it: calls and free slots. No I/O."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rljob_worker.embodied.simulators.settings import ActionBounds, FailureCause, Frame
from rljob_worker.embodied.simulators.shared_memory import ObservationMemory
from rljob_worker.sandbox.guardian.framing import Message
from rljob_worker.sandbox.guardian.loop_processes import LoopProcess


class ProcessLost(Exception):
    """A call has no answer because its process is gone."""

    def __init__(self, cause: FailureCause, message: str, *, was_at_work: bool) -> None:
        """was_at_work: whether the process was at this call when it went, so that the call may be why."""
        super().__init__(message)
        self.cause: FailureCause = cause
        self.was_at_work = was_at_work


@dataclass(eq=False, slots=True)
class PendingRequest:
    """A call without an answer."""

    number: int
    message: Message
    seconds: float
    """How long the process may be at it."""
    future: asyncio.Future[Message]
    timer: asyncio.TimerHandle | None = None


@dataclass(eq=False, slots=True)
class SimulatorProcess(LoopProcess):
    """One process, its memory and its calls."""

    memory: ObservationMemory
    ready: asyncio.Future[ActionBounds]
    """Done once it has an environment; with InvalidJob or ProcessLost where it has none."""
    free_slots: list[int]
    waiting: deque[PendingRequest] = field(default_factory=deque)
    at_work: PendingRequest | None = None

    @property
    def is_ready(self) -> bool:
        """Whether it takes episodes."""
        return self.lost is None and self.ready.done() and self.ready.exception() is None


@dataclass(frozen=True, slots=True)
class Slot:
    """A place for one environment."""

    process: SimulatorProcess
    number: int


def bounds_of(values: list[float | None], unbounded: float) -> NDArray[np.float64]:
    """Bounds of actions as a process sends them, [dimensions]. unbounded: what stands for None."""
    return np.array([unbounded if value is None else value for value in values], np.float64)


def frame_of(memory: ObservationMemory, slot: int, message: Message) -> Frame:
    """An answer with the observation that lies in the memory."""
    state, *pictures = memory.read(slot, message["lengths"])
    num_seen = len(pictures) - message["earlier"]
    return Frame(
        pictures=tuple(pictures[:num_seen]),
        state=np.frombuffer(state, np.float32) if message["has_state"] else None,
        rewards=tuple(message["rewards"]),
        successes=tuple(message["successes"]),
        is_over=message["over"],
        digest=message["digest"],
        earlier=tuple(pictures[num_seen:]),
    )
