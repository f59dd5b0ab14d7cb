"""The processes that compute rewards: which there are, what each works on, when one has to be killed.

They may hang, crash or leak without harm to the worker. What a row's time-out, mistake or death means is `round`'s.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rljob_worker.errors import InvalidJob
from rljob_worker.rewards.access import ServiceAccess, access_of
from rljob_worker.rewards.forms import SHOWN
from rljob_worker.rewards.running.chunks import RewardCall, RewardChunk
from rljob_worker.rewards.running.reward_room import RewardRoom
from rljob_worker.rewards.running.round import Round
from rljob_worker.sandbox.guardian.framing import Message
from rljob_worker.sandbox.guardian.user_processes import UserProcess, ending

if TYPE_CHECKING:
    from rljob_api.v1alpha1.data import RewardSpec

LOOK_SECONDS = 0.25
"""How often an end is looked for that no guardian reports, where a copy of the process holds its pipe open."""
START_SECONDS = 300.0
"""How long a process may take to import the rewards' modules; a first import from network storage is slow."""

_log = logging.getLogger("rljob.rewards")


class _Slot:
    """A process, which may be replaced: whether it has loaded the rewards, and what it works on."""

    def __init__(self, process: UserProcess) -> None:
        self.process = process
        self.ready = False
        self.chunk: RewardChunk | None = None
        self.started = time.monotonic()


class RewardPool:
    """Keeps processes warm and deals rows to them. Used by one thread at a time; `wake` is for any."""

    def __init__(
        self,
        rewards: Sequence[RewardSpec],
        processes: int,
        pythonpath: Sequence[str | os.PathLike[str]] = (),
        columns: Sequence[str] = (),
    ) -> None:
        assert processes >= 1 and rewards, "at least one process and one reward"
        self._specs = list(rewards)
        access = [access_of(spec, os.environ) for spec in rewards]
        self._room = RewardRoom(rewards, [item["url"] for item in access if item is not None], pythonpath)
        for item in access:
            if item is not None:
                item["by_proxy"] = self._room.has_proxy
        described = zip(rewards, access, strict=True)
        self._hello: Message = {"rewards": [_description(spec, columns, item) for spec, item in described]}
        self._calls: list[RewardCall] | None = None
        self._selector = selectors.DefaultSelector()
        self._awakened, self._wake = os.pipe()
        os.set_blocking(self._awakened, False)
        os.set_blocking(self._wake, False)
        self._selector.register(self._awakened, selectors.EVENT_READ)
        if self._room.guardian is not None:
            self._selector.register(self._room.guardian, selectors.EVENT_READ)
        self._slots: list[_Slot] = []
        for _ in range(processes):
            self._slots.append(self._start())

    def new_round(self) -> Round:
        """Waits until one process has loaded every reward.

        Raises InvalidJob: a module or function that is missing, fails to import, or does not take the options.
        """
        while self._calls is None:
            self._wait(None)
            self._receive(None)
            self._expire(None)
        return Round(self._calls, len(self._slots))

    def turn(self, work: Round, until: float | None = None) -> None:
        """Deal what waits, and see to what has come, after the next thing that happens, or at that time. Raises
        BadData, InvalidJob."""
        self._deal(work)
        self._wait(work, until)
        self._receive(work)
        self._expire(work)

    def wake(self) -> None:
        """End the `turn` that another thread is in."""
        with contextlib.suppress(BlockingIOError):  # as many as the pipe holds are enough
            os.write(self._wake, b"w")

    def drop_unfinished(self) -> None:
        """After an error, processes in the middle of a chunk would answer the next round's questions."""
        for slot in list(self._slots):
            if slot.chunk is not None:
                self._replace(slot)

    def close(self) -> None:
        """Kill the processes and everything they started."""
        while self._slots:
            self._end(self._slots.pop())
        self._selector.close()
        self._room.close()
        os.close(self._awakened)
        os.close(self._wake)

    def _deal(self, work: Round) -> None:
        """To idle processes first; what is left to those that may take more."""
        for slot in self._slots:
            if slot.ready and slot.chunk is None and (chunk := work.next_chunk(time.monotonic())) is not None:
                slot.chunk = chunk
                self._send(slot, work, chunk, chunk.rows)
        for slot in self._slots:
            if slot.chunk is not None and (rows := work.more_for(slot.chunk, time.monotonic())):
                self._send(slot, work, slot.chunk, rows)

    def _send(self, slot: _Slot, work: Round, chunk: RewardChunk, rows: Sequence[int]) -> None:
        limit = self._specs[chunk.reward].timeout_seconds
        sent, pictures = without_pictures([work.rows[row] for row in rows])
        message = {"reward": chunk.reward, "limit": limit, "rows": list(zip(rows, sent, strict=True))}
        slot.process.send(message, pictures)

    def _wait(self, work: Round | None, until: float | None = None) -> None:
        """Until a process has something to say, takes more, or a row's time is up."""
        deadlines = [deadline for slot in self._slots if (deadline := self._deadline(slot, work)) is not None]
        deadlines += [] if until is None else [until]
        if work is not None and work.due is not None and (self._has_idle or work.due > time.monotonic()):
            deadlines.append(work.due)
        full = [slot.process.requests for slot in self._slots if slot.process.has_unsent]
        for requests in full:
            self._selector.register(requests, selectors.EVENT_WRITE)
        if self._room.guardian is None:
            deadlines.append(time.monotonic() + LOOK_SECONDS)
        else:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._room.guardian.has_unsent else 0)
            self._selector.modify(self._room.guardian, events)
        self._selector.select(max(0.0, min(deadlines) - time.monotonic()) if deadlines else None)
        for requests in full:
            self._selector.unregister(requests)

    @property
    def _has_idle(self) -> bool:
        """Whether a process takes what is due at once."""
        return any(slot.ready and slot.chunk is None for slot in self._slots)

    def _receive(self, work: Round | None) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._awakened, 4096)
        if self._room.guardian is not None:
            self._room.guardian.flush()
            self._room.guardian.receive()
        for slot in list(self._slots):
            slot.process.flush()
            for message in slot.process.receive():
                self._take(slot, message, work)

    def _take(self, slot: _Slot, message: Message, work: Round | None) -> None:
        now = time.monotonic()
        if "refused" in message:
            raise InvalidJob(message["refused"])
        if "ready" in message:
            slot.ready = True
            self._calls = [_call(spec, flag) for spec, flag in zip(self._specs, message["ready"], strict=True)]
        elif "died" in message:
            self._died(slot, message["died"], work)
        elif work is not None and slot.chunk is not None:
            _record(work, slot.chunk, message, now)
            if not slot.chunk.rows:
                slot.chunk = None

    def _died(self, slot: _Slot, code: int, work: Round | None) -> None:
        how = ending(code) if slot.process.killed_for is None else slot.process.killed_for[1]
        if self._room.guardian is not None and self._room.guardian.is_gone:
            raise RuntimeError("the guardian of the reward processes was killed; restart the worker")
        if not slot.ready:
            names = ", ".join(spec.run for spec in self._specs)
            raise InvalidJob(f"importing the rewards ({names}) ended the process: {how}; its last output is in the log")
        if work is not None and slot.chunk is not None:
            work.died(slot.chunk, how, time.monotonic())
            _log.warning("a reward process ended (%s); its rows run again in another", how)
        self._replace(slot)

    def _expire(self, work: Round | None) -> None:
        now = time.monotonic()
        for slot in list(self._slots):
            deadline = self._deadline(slot, work)
            if deadline is None or deadline > now:
                continue
            if not slot.ready:
                names = ", ".join(spec.run for spec in self._specs)
                raise InvalidJob(f"importing the rewards ({names}) took longer than {START_SECONDS:g} s")
            assert work is not None and slot.chunk is not None
            work.expired(slot.chunk, now)
            self._replace(slot)

    def _deadline(self, slot: _Slot, work: Round | None) -> float | None:
        if not slot.ready:
            return slot.started + START_SECONDS
        return work.deadline(slot.chunk) if work is not None and slot.chunk is not None else None

    def _start(self) -> _Slot:
        slot = _Slot(self._room.start(self._hello))
        self._selector.register(slot.process.results, selectors.EVENT_READ)
        return slot

    def _replace(self, slot: _Slot) -> None:
        self._end(slot)
        self._slots[self._slots.index(slot)] = self._start()

    def _end(self, slot: _Slot) -> None:
        self._selector.unregister(slot.process.results)
        slot.process.close()


def without_pictures(rows: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Rows with numbers in place of their pictures and videos, and what they number: those of a group once."""
    pictures: list[bytes] = []
    numbers: dict[int, list[int]] = {}
    result = []
    for row in rows:
        sent = dict(row)
        for name in SHOWN:
            of_row = row.get(name)
            if of_row is None:
                continue
            if id(of_row) not in numbers:
                numbers[id(of_row)] = list(range(len(pictures), len(pictures) + len(of_row)))
                pictures += of_row
            sent[name] = numbers[id(of_row)]
        result.append(sent)
    return result, pictures


def _description(spec: RewardSpec, columns: Sequence[str], access: ServiceAccess | None) -> Message:
    return {
        "name": spec.name,
        "run": spec.run,
        "column": spec.column,
        "columns": list(columns),
        "options": dict(spec.options),
        "access": access,
    }


def _call(spec: RewardSpec, asynchronous: bool) -> RewardCall:
    service = spec.service if spec.url is None else spec.name
    return RewardCall(
        spec.name,
        spec.timeout_seconds,
        asynchronous,
        spec.on_error,
        spec.retries,
        spec.backoff_seconds,
        service,
        has_steps=spec.spread == "Steps",
    )


def _record(work: Round, chunk: RewardChunk, message: Message, now: float) -> None:
    if "started" in message:
        work.started(chunk, message["row"], now)
    else:
        work.finished(chunk, message["row"], message, now)
