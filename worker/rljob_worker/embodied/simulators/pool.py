"""Processes of simulators: started, asked, and replaced when one is late or ends.

    pool = SimulatorPool(settings, PoolLimits(processes=16), environment)
    bounds = await pool.start()                        # raises InvalidJob: no environment can be made
    session = pool.session()
    frame = await session.reset(seed=7, options={"task": "push"})
    frame = await session.step(actions)                # raises SimulatorFailed: it costs this episode
    session.close()
    pool.close()

Episodes go on by themselves, none waits for another one's step. A process is at one call at a time, and has been sent
the next one. One that is late is killed and replaced, and the other episodes that it had are played again in other
processes, action by action.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from rljob_worker.embodied.simulators.process import (
    Call,
    PendingRequest,
    ProcessLost,
    SimulatorProcess,
    Slot,
    bounds_of,
)
from rljob_worker.embodied.simulators.session import SimulatorSession
from rljob_worker.embodied.simulators.settings import (
    FIELD,
    ActionBounds,
    FailureCause,
    PoolLimits,
    SimulatorFailed,
    SimulatorSettings,
)
from rljob_worker.embodied.simulators.shared_memory import ObservationMemory
from rljob_worker.errors import EngineBroken, InvalidJob
from rljob_worker.sandbox.guardian.framing import Message
from rljob_worker.sandbox.guardian.loop_processes import LoopProcesses
from rljob_worker.sandbox.guardian.user_processes import Guardian, UserProcess
from rljob_worker.sandbox.targets import Cause

MOST_FAILED_STARTS = 3
"""Processes in a row that do not start, after one has; then none will."""
MOST_TASKS = 4096
"""Processes and threads that a process of simulators may have: renderers have many."""
_CAUSES: Mapping[Cause, FailureCause] = {"TimedOut": "timed_out", "OutOfMemory": "out_of_memory"}
"""How episodes say why a process is gone; otherwise it died."""


class SimulatorPool:
    """All simulators of a rank. For one event loop; `start` begins them."""

    def __init__(self, settings: SimulatorSettings, limits: PoolLimits, environment: Mapping[str, str]) -> None:
        """environment: variables of the processes."""
        self._settings, self.limits = settings, limits
        self._guardian = Guardian("rljob_worker.embodied.simulators.serving", environment)
        self._started: LoopProcesses[SimulatorProcess] | None = None
        self._running: asyncio.AbstractEventLoop | None = None
        self._slot_waiters: deque[asyncio.Future[Slot]] = deque()
        self._num_calls = self._num_failed_starts = 0
        self._has_started = False
        self._problem: Exception | None = None
        """Why there will be no more processes."""

    @property
    def num_environments(self) -> int:
        """Episodes that it plays at once."""
        return self.limits.processes * self.limits.environments

    async def start(self) -> ActionBounds:
        """Start the processes, and wait until one has an environment: what actions it takes. Raises InvalidJob."""
        self._running = asyncio.get_running_loop()
        self._started = LoopProcesses(self._guardian, self._take, self._end, self._guardian_gone)
        first = self._launch()
        try:
            bounds = await first.ready
        except ProcessLost as error:
            raise InvalidJob(f"{FIELD}.run: {self._settings.run}: {error}") from error
        for _ in range(1, self.limits.processes):
            self._launch()
        return bounds

    def session(self) -> SimulatorSession:
        """An episode to be played."""
        return SimulatorSession(self)

    async def tasks(self) -> list[dict[str, str]]:
        """What the environment lists. Raises InvalidJob, SimulatorFailed."""
        slot = await self.acquire()
        try:
            tasks = await self.ask(slot, Call({"tasks": True}, self.limits.start_seconds))
        except ProcessLost as error:
            raise SimulatorFailed(error.cause, str(error)) from error
        finally:
            self.release(slot)
        return [dict(task) for task in tasks]

    def close(self) -> None:
        """End every process; calls without an answer fail."""
        self._fail(EngineBroken("the simulators were closed"))
        if self._started is not None:
            self._started.close()
        self._guardian.close()

    @property
    def _processes(self) -> LoopProcesses[SimulatorProcess]:
        assert self._started is not None, "started"
        return self._started

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        assert self._running is not None, "started"
        return self._running

    # ---- slots and calls, for sessions

    async def acquire(self) -> Slot:
        """A slot that nobody has, of the process with the most of them; waits for one. Raises EngineBroken."""
        if self._problem is not None:
            raise self._problem
        process = self._emptiest()
        if process is not None and not self._slot_waiters:
            return Slot(process, process.free_slots.pop())
        future: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()
        self._slot_waiters.append(future)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self.release(future.result())
            raise

    def release(self, slot: Slot) -> None:
        """Nobody has it any more."""
        if slot.process.lost is None:
            slot.process.free_slots.append(slot.number)
            self._give_slots()

    async def ask(self, slot: Slot, call: Call) -> Any:
        """Have the slot's environment reset or step: a frame; or list its tasks. Raises ProcessLost, SimulatorFailed,
        InvalidJob."""
        process = slot.process
        if self._problem is not None:
            raise self._problem
        if process.lost is not None:
            raise ProcessLost("died", "its process is gone", was_at_work=False)
        self._num_calls += 1
        request = PendingRequest(self._num_calls, call, slot.number, self._loop.create_future())
        process.waiting.append(request)
        self._send_next(process)
        return await request.future

    def _send_next(self, process: SimulatorProcess) -> None:
        while (request := process.next_to_send()) is not None:
            if len(process.sent) == 1:
                self._watch(process, request)
            if request.call.actions is not None:
                process.memory.put_actions(request.slot, request.call.actions)
            message = {"call": request.number, "slot": request.slot, **request.call.message}
            self._processes.send(process, json.dumps(message).encode())

    def _watch(self, process: SimulatorProcess, request: PendingRequest) -> None:
        """The process is at it, and may be for so long. The timer is set anew only where it would look too late."""
        request.deadline = self._loop.time() + request.call.seconds
        if process.timer is not None and process.timer.when() > request.deadline:
            process.timer.cancel()
            process.timer = None
        if process.timer is None:
            process.timer = self._loop.call_at(request.deadline, self._look_at_deadline, process)

    def _look_at_deadline(self, process: SimulatorProcess) -> None:
        process.timer = None
        if not process.sent:
            return
        request = process.sent[0]
        if self._loop.time() < request.deadline:
            process.timer = self._loop.call_at(request.deadline, self._look_at_deadline, process)
        else:
            self._late(process, request.call)

    def _give_slots(self) -> None:
        while self._slot_waiters and (process := self._emptiest()) is not None:
            waiter = self._slot_waiters.popleft()
            if not waiter.done():
                waiter.set_result(Slot(process, process.free_slots.pop()))

    def _emptiest(self) -> SimulatorProcess | None:
        """The process with the most free slots; None where none has one."""
        free = (item for item in self._processes.processes if item.is_ready and item.free_slots)
        return max(free, key=lambda item: len(item.free_slots), default=None)

    # ---- processes

    def _launch(self) -> SimulatorProcess:
        num_slots = self.limits.environments
        memory, descriptor = ObservationMemory.create(num_slots)
        settings: Message = {"folder": True}
        if self.limits.memory_bytes is not None:
            settings["limits"] = (self.limits.memory_bytes, MOST_TASKS)

        def make(user: UserProcess) -> SimulatorProcess:
            ready: asyncio.Future[ActionBounds] = asyncio.get_running_loop().create_future()
            return SimulatorProcess(user, memory, ready, list(range(num_slots)))

        seconds = self.limits.start_seconds
        process = self._processes.start(
            make,
            {"settings": self._settings.to_json(), "slots": num_slots},
            settings,
            seconds=seconds,
            late=f"making an environment took longer than {FIELD}.startSeconds {seconds:g}",
            memory=descriptor,
        )
        os.close(descriptor)
        return process

    def _guardian_gone(self) -> None:
        self._fail(EngineBroken("the process that starts simulators has ended"))

    def _end(self, process: SimulatorProcess, cause: Cause, why: str) -> None:
        self._lose(process, _CAUSES.get(cause, "died"), why)

    def _take(self, process: SimulatorProcess, message: Message) -> None:
        match message:
            case {"ready": {"low": list(low), "high": list(high)}} if not process.ready.done():
                self._is_ready(process, bounds_of(low, -np.inf), bounds_of(high, np.inf))
            case {"refused": str(why)} if not process.ready.done():
                process.ready.set_exception(InvalidJob(why))
                self._lose(process, "died", why)
            case {"call": int(number)} if process.sent and process.sent[0].number == number:
                self._answered(process, process.sent.popleft(), message)

    def _is_ready(self, process: SimulatorProcess, low: np.ndarray, high: np.ndarray) -> None:
        self._num_failed_starts, self._has_started = 0, True
        self._processes.has_started(process)
        process.ready.set_result(ActionBounds(low, high))
        self._give_slots()

    def _answered(self, process: SimulatorProcess, request: PendingRequest, message: Message) -> None:
        if process.sent:
            self._watch(process, process.sent[0])
        if not request.future.done():
            try:
                request.future.set_result(self._result(process, request, message))
            except (SimulatorFailed, InvalidJob) as error:
                request.future.set_exception(error)
        self._send_next(process)

    def _result(self, process: SimulatorProcess, request: PendingRequest, message: Message) -> Any:
        """What a process has answered. Raises SimulatorFailed, InvalidJob."""
        match message:
            case {"refused": str(why)}:
                raise InvalidJob(why)
            case {"error": [cause, str(why)]}:
                raise SimulatorFailed(cause, why)
            case {"tasks": list(tasks)}:
                return tasks
        return process.memory.read(request.slot)

    def _late(self, process: SimulatorProcess, call: Call) -> None:
        is_reset = call.actions is None
        what = "a reset" if is_reset else f"{call.message['steps']} steps"
        field = "startSeconds" if is_reset else "stepSeconds"
        seconds = self.limits.start_seconds if is_reset else self.limits.step_seconds
        self._lose(process, "timed_out", f"{what} took longer than {FIELD}.{field} {seconds:g} allows")

    def _lose(self, process: SimulatorProcess, cause: FailureCause, why: str) -> None:
        """End a process, fail its calls, and start another in its place."""
        self._num_failed_starts += not process.is_ready
        self._drop(process, cause, why)
        if self._num_failed_starts > MOST_FAILED_STARTS:
            self._fail(EngineBroken(f"{self._num_failed_starts} processes of simulators in a row did not start: {why}"))
        elif self._has_started and self._problem is None:
            self._launch()

    def _drop(self, process: SimulatorProcess, cause: FailureCause, why: str) -> None:
        if process.lost is not None:
            return
        if process.timer is not None:
            process.timer.cancel()
        self._processes.forget(process, why)
        process.memory.close()
        if not process.ready.done():
            process.ready.set_exception(ProcessLost(cause, why, was_at_work=True))
            process.ready.exception()
        for request, was_at_work in process.take_unanswered():
            request.future.set_exception(ProcessLost(cause, why, was_at_work=was_at_work))

    def _fail(self, error: Exception) -> None:
        """There will be no more processes."""
        self._problem = self._problem or error
        for process in [] if self._started is None else self._started.processes:
            self._drop(process, "died", str(error))
        for waiter in self._slot_waiters:
            if not waiter.done():
                waiter.set_exception(error)
        self._slot_waiters.clear()
