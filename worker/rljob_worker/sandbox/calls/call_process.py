"""A process that answers calls as the worker's event loop knows it: what waits for it and what it works on. No I/O."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from rljob_worker.sandbox.guardian.framing import Message
from rljob_worker.sandbox.guardian.loop_processes import LoopProcess
from rljob_worker.sandbox.targets import Answer, CallError, Cause, Target

MOST_IN_LOOP = 64
"""Asynchronous calls of a process at once."""
LOOP_GRACE_SECONDS = 2.0
"""An asynchronous call ends by its own clock; one that does not within this holds up the loop and costs the process."""


Kind = Literal["Shared", "Isolated", "Alone", "Copied"]
"""Alone: for one call that is suspected of ending its process. Copied: has loaded what isolated ones begin with."""


@dataclass(eq=False, slots=True)
class PendingCall:
    """A call without an answer."""

    number: int
    name: str
    """The name of its target."""
    target: Target
    body: bytes
    """Its message as JSON."""
    future: asyncio.Future[Answer]
    needs_object: bool
    """Whether it calls an object, which is in one process only."""
    is_lost: bool = False
    """Whether it is to be made again, as its process was ended for another call."""
    started: float = 0.0
    timer: asyncio.TimerHandle | None = None

    @property
    def needs_state(self) -> bool:
        """Whether it counts on earlier calls of its session."""
        return self.needs_object or self.target.stateful

    def answer(self, answer: Answer) -> None:
        """Give the caller, if it still waits, its answer."""
        if self.timer is not None:
            self.timer.cancel()
        if not self.future.done():
            self.future.set_result(answer)

    def fail(self, cause: Cause, message: str, seconds: float = 0.0) -> None:
        self.answer(Answer(None, CallError(cause, message), seconds))


class CallQueue:
    """Calls that wait for a process, in the order in which they came; plain and asynchronous ones apart."""

    def __init__(self, asynchronous: Mapping[str, bool]) -> None:
        """asynchronous: of targets that are loaded, by name."""
        self._asynchronous = asynchronous
        self._calls: dict[bool, deque[PendingCall]] = {False: deque(), True: deque()}
        self._unsorted: deque[PendingCall] = deque()

    def __bool__(self) -> bool:
        return bool(self._unsorted or self._calls[False] or self._calls[True])

    def add(self, call: PendingCall) -> None:
        self._unsorted.append(call)

    def take(self, asynchronous: bool) -> PendingCall | None:
        """The next call of this kind whose caller still waits."""
        while self._unsorted and self._unsorted[0].name in self._asynchronous:
            call = self._unsorted.popleft()
            self._calls[self._asynchronous[call.name]].append(call)
        calls = self._calls[asynchronous]
        while calls:
            if not (call := calls.popleft()).future.done():
                return call
        return None

    def take_all_of(self, names: Container[str]) -> list[PendingCall]:
        """Calls of targets of these names."""
        result = [call for call in self._unsorted if call.name in names]
        self._unsorted = deque(call for call in self._unsorted if call.name not in names)
        return result

    def clear(self) -> list[PendingCall]:
        """Everything that waited."""
        result = [*self._calls[False], *self._calls[True], *self._unsorted]
        for calls in (self._calls[False], self._calls[True], self._unsorted):
            calls.clear()
        return result


@dataclass(eq=False, slots=True)
class CallProcess(LoopProcess):
    """A process and its calls. A plain call runs alone in its main thread, asynchronous ones together in its loop."""

    kind: Kind
    waiting: CallQueue
    """Calls that only this process can answer."""
    ready: asyncio.Future[str | None]
    """Done once it has loaded its targets; with the reason where it is gone before."""
    plain: PendingCall | None = None
    in_loop: dict[int, PendingCall] = field(default_factory=dict)
    num_sessions: int = 0
    """With objects in it."""
    num_printed_bytes: int = 0
    most_printed_bytes: int = 0
    """What the calls may print that began since it last had none."""

    @property
    def in_flight(self) -> list[PendingCall]:
        plain = [] if self.plain is None else [self.plain]
        return [*plain, *self.in_loop.values()]

    @property
    def is_busy(self) -> bool:
        """Whether a call of it has no answer yet."""
        return bool(self.in_flight or self.waiting)

    def has_room(self, asynchronous: bool) -> bool:
        if not self.ready.done():
            return False
        return len(self.in_loop) < MOST_IN_LOOP if asynchronous else self.plain is None

    def take_next(self, asynchronous: bool, shared: CallQueue) -> PendingCall | None:
        """The next call that it has room for; of those that any process answers only where it is a shared one."""
        if not self.has_room(asynchronous):
            return None
        call = self.waiting.take(asynchronous)
        return shared.take(asynchronous) if call is None and self.kind == "Shared" else call

    def begin(self, call: PendingCall, asynchronous: bool) -> None:
        if not self.in_flight:
            self.num_printed_bytes = self.most_printed_bytes = 0
        self.most_printed_bytes += call.target.limits.output_bytes
        if asynchronous:
            self.in_loop[call.number] = call
        else:
            self.plain = call

    def finish(self, number: int) -> PendingCall | None:
        """The call of this number, which is not in flight any more; None where there is no such call."""
        if self.plain is not None and self.plain.number == number:
            call, self.plain = self.plain, None
            return call
        return self.in_loop.pop(number, None)

    def printed(self, data: bytes) -> bytes:
        """Count what it has printed; the part of it that its calls may print."""
        allowed = self.most_printed_bytes - self.num_printed_bytes
        self.num_printed_bytes += len(data)
        return data[: max(0, allowed)]


def answer_of(message: Message, seconds: float) -> Answer:
    """What a process said of a call, which may be anything: user code can write into its pipe."""
    match message:
        case {"error": [cause, str(text)]} if cause in get_args(Cause):
            return Answer(None, CallError(cause, text), seconds)
        case {"value": value}:
            return Answer(value, None, seconds)
    return Answer(None, CallError("Died", "its process sent an answer that is none"), seconds)
