"""The processes that compute rewards: which there are, what each works on, when one has to be killed.

They may hang, crash or leak without harm to the worker. What a row's time-out, mistake or death means is `round`'s.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from rljob_worker.errors import InvalidJob
from rljob_worker.rewards.access import Asks, access_of
from rljob_worker.rewards.running.child import RewardProcess, environment
from rljob_worker.rewards.running.chunks import Chunk, RewardCall
from rljob_worker.rewards.running.framing import Message
from rljob_worker.rewards.running.round import Round

START_SECONDS = 300.0
"""How long a process may take to import the rewards' modules; a first import from network storage is slow."""

_log = logging.getLogger("rljob.rewards")


class RewardSpec(Asks, Protocol):
    """A reward as the job states it."""

    @property
    def run(self) -> str: ...
    @property
    def column(self) -> str | None: ...
    @property
    def weight(self) -> float: ...
    @property
    def spread(self) -> Literal["Row", "Steps"]: ...
    @property
    def timeout_seconds(self) -> float: ...
    @property
    def on_error(self) -> Literal["Fail", "Zero", "Retry"]: ...
    @property
    def retries(self) -> int: ...
    @property
    def backoff_seconds(self) -> float: ...
    @property
    def options(self) -> Mapping[str, Any]: ...


class _Seat:
    """A place for a process: which one sits there, whether it has loaded the rewards, what it works on."""

    def __init__(self, process: RewardProcess) -> None:
        self.process = process
        self.ready = False
        self.chunk: Chunk | None = None
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
        self._environment = environment(pythonpath)
        self._hello: Message = {"rewards": [_description(spec, columns) for spec in rewards]}
        self._calls: list[RewardCall] | None = None
        self._selector = selectors.DefaultSelector()
        self._awakened, self._wake = os.pipe()
        os.set_blocking(self._awakened, False)
        os.set_blocking(self._wake, False)
        self._selector.register(self._awakened, selectors.EVENT_READ)
        self._seats: list[_Seat] = []
        for _ in range(processes):
            self._seats.append(self._start())

    def new_round(self) -> Round:
        """Waits until one process has loaded every reward.

        Raises InvalidJob: a module or function that is missing, fails to import, or does not take the options.
        """
        while self._calls is None:
            self._wait(None)
            self._receive(None)
            self._expire(None)
        return Round(self._calls, len(self._seats))

    def turn(self, work: Round) -> None:
        """Deal what waits, and see to what has come, after the next thing that happens. Raises BadData, InvalidJob."""
        self._deal(work)
        self._wait(work)
        self._receive(work)
        self._expire(work)

    def wake(self) -> None:
        """End the `turn` that another thread is in."""
        with contextlib.suppress(BlockingIOError):  # as many as the pipe holds are enough
            os.write(self._wake, b"w")

    def drop_unfinished(self) -> None:
        """After an error, processes in the middle of a chunk would answer the next round's questions."""
        for seat in list(self._seats):
            if seat.chunk is not None:
                self._replace(seat)

    def close(self) -> None:
        """Kill the processes and everything they started."""
        while self._seats:
            self._end(self._seats.pop())
        self._selector.close()
        os.close(self._awakened)
        os.close(self._wake)

    def _deal(self, work: Round) -> None:
        """To idle processes first; what is left to those that may take more."""
        for seat in self._seats:
            if seat.ready and seat.chunk is None and (chunk := work.next_chunk(time.monotonic())) is not None:
                seat.chunk = chunk
                self._send(seat, work, chunk, chunk.rows)
        for seat in self._seats:
            if seat.chunk is not None and (rows := work.more_for(seat.chunk, time.monotonic())):
                self._send(seat, work, seat.chunk, rows)

    def _send(self, seat: _Seat, work: Round, chunk: Chunk, rows: Sequence[int]) -> None:
        limit = self._specs[chunk.reward].timeout_seconds
        sent = [[row, dict(work.rows[row])] for row in rows]
        seat.process.send({"reward": chunk.reward, "limit": limit, "rows": sent})

    def _wait(self, work: Round | None) -> None:
        """Until a process has something to say, takes more, or a row's time is up."""
        deadlines = [deadline for seat in self._seats if (deadline := self._deadline(seat, work)) is not None]
        if work is not None and work.due is not None and (self._has_idle or work.due > time.monotonic()):
            deadlines.append(work.due)
        full = [seat.process.requests for seat in self._seats if seat.process.has_unsent]
        for requests in full:
            self._selector.register(requests, selectors.EVENT_WRITE)
        self._selector.select(max(0.0, min(deadlines) - time.monotonic()) if deadlines else None)
        for requests in full:
            self._selector.unregister(requests)

    @property
    def _has_idle(self) -> bool:
        """Whether a process takes what is due at once."""
        return any(seat.ready and seat.chunk is None for seat in self._seats)

    def _receive(self, work: Round | None) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._awakened, 4096)
        for seat in list(self._seats):
            seat.process.flush()
            for message in seat.process.receive():
                self._take(seat, message, work)

    def _take(self, seat: _Seat, message: Message, work: Round | None) -> None:
        now = time.monotonic()
        if "refused" in message:
            raise InvalidJob(message["refused"])
        if "ready" in message:
            seat.ready = True
            self._calls = [_call(spec, flag) for spec, flag in zip(self._specs, message["ready"], strict=True)]
        elif "died" in message:
            self._died(seat, message["died"], work)
        elif work is not None and seat.chunk is not None:
            _record(work, seat.chunk, message, now)
            if not seat.chunk.rows:
                seat.chunk = None

    def _died(self, seat: _Seat, code: int, work: Round | None) -> None:
        how = _ending(code)
        if not seat.ready:
            names = ", ".join(spec.run for spec in self._specs)
            raise InvalidJob(f"importing the rewards ({names}) ended the process: {how}; its last output is in the log")
        if work is not None and seat.chunk is not None:
            work.died(seat.chunk, how, time.monotonic())
            _log.warning("a reward process ended (%s); its rows run again in another", how)
        self._replace(seat)

    def _expire(self, work: Round | None) -> None:
        now = time.monotonic()
        for seat in list(self._seats):
            deadline = self._deadline(seat, work)
            if deadline is None or deadline > now:
                continue
            if not seat.ready:
                names = ", ".join(spec.run for spec in self._specs)
                raise InvalidJob(f"importing the rewards ({names}) took longer than {START_SECONDS:g} s")
            assert work is not None and seat.chunk is not None
            work.expired(seat.chunk, now)
            self._replace(seat)

    def _deadline(self, seat: _Seat, work: Round | None) -> float | None:
        if not seat.ready:
            return seat.started + START_SECONDS
        return work.deadline(seat.chunk) if work is not None and seat.chunk is not None else None

    def _start(self) -> _Seat:
        seat = _Seat(RewardProcess(self._hello, self._environment))
        for descriptor in (seat.process.results, seat.process.end):
            self._selector.register(descriptor, selectors.EVENT_READ)
        return seat

    def _replace(self, seat: _Seat) -> None:
        self._end(seat)
        self._seats[self._seats.index(seat)] = self._start()

    def _end(self, seat: _Seat) -> None:
        for descriptor in (seat.process.results, seat.process.end):
            self._selector.unregister(descriptor)
        seat.process.kill()


def _description(spec: RewardSpec, columns: Sequence[str]) -> Message:
    return {
        "name": spec.name,
        "run": spec.run,
        "column": spec.column,
        "columns": list(columns),
        "options": dict(spec.options),
        "access": access_of(spec, os.environ),
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


def _record(work: Round, chunk: Chunk, message: Message, now: float) -> None:
    if "started" in message:
        work.started(chunk, message["row"], now)
    else:
        work.finished(chunk, message["row"], message, now)


def _ending(code: int) -> str:
    if code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"
