"""Processes of simulators: started, asked, and replaced when one is late or ends.

    pool = SimulatorPool(settings, PoolLimits(processes=16), environment)
    bounds = await pool.start()                        # raises InvalidJob: no environment can be made
    session = pool.session()
    frame = await session.reset(seed=7, options={"task": "push"})
    frame = await session.step(actions)                # raises SimulatorFailed: it costs this episode
    session.close()
    pool.close()

Episodes go on by themselves, none waits for another one's step. A process is at one call at a time; a late one is
killed and replaced, and the other episodes that it had are played again in other processes, action by action.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Mapping
from functools import partial

import numpy as np

from rljob_worker.embodied.simulators.process import (
    PendingRequest,
    ProcessLost,
    SimulatorProcess,
    Slot,
    bounds_of,
    frame_of,
)
from rljob_worker.embodied.simulators.session import SimulatorSession
from rljob_worker.embodied.simulators.settings import (
    FIELD,
    ActionBounds,
    FailureCause,
    Frame,
    PoolLimits,
    SimulatorFailed,
    SimulatorSettings,
)
from rljob_worker.embodied.simulators.shared_memory import ObservationMemory
from rljob_worker.errors import EngineBroken, InvalidJob
from rljob_worker.sandbox.guardian.framing import Message
from rljob_worker.sandbox.guardian.loop_pipes import LoopPipes
from rljob_worker.sandbox.guardian.user_processes import Guardian, ending

MOST_FAILED_STARTS = 3
"""Processes in a row that do not start, after one has; then none will."""
MOST_TASKS = 4096
"""Processes and threads that a process of simulators may have: renderers have many."""


class SimulatorPool:
    """All simulators of a rank. For one event loop; `start` begins them."""

    def __init__(self, settings: SimulatorSettings, limits: PoolLimits, environment: Mapping[str, str]) -> None:
        """environment: variables of the processes."""
        self._settings, self.limits = settings, limits
        self._guardian = Guardian("rljob_worker.embodied.simulators.serving", environment)
        self._processes: dict[int, SimulatorProcess] = {}
        """By number."""
        self._slot_waiters: deque[asyncio.Future[Slot]] = deque()
        self._num_calls = self._num_failed_starts = 0
        self._has_started = False
        self._problem: Exception | None = None
        """Why there will be no more processes."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pipes: LoopPipes | None = None

    @property
    def num_environments(self) -> int:
        """Episodes that it plays at once."""
        return self.limits.processes * self.limits.environments

    async def start(self) -> ActionBounds:
        """Start the processes, and wait until one has an environment: what actions it takes. Raises InvalidJob."""
        self._loop = asyncio.get_running_loop()
        self._pipes = LoopPipes(self._guardian, self._loop)
        self._loop.add_reader(self._guardian, self._receive_endings)
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
            answer = await self.request(slot.process, {"tasks": True}, self.limits.start_seconds)
        except ProcessLost as error:
            raise SimulatorFailed(error.cause, str(error)) from error
        finally:
            self.release(slot)
        return [dict(task) for task in answer["tasks"]]

    def close(self) -> None:
        """End every process; calls without an answer fail."""
        self._fail(EngineBroken("the simulators were closed"))
        if self._pipes is not None:
            self._pipes.close()
        self._guardian.close()

    # ---- slots and calls, for sessions

    async def acquire(self) -> Slot:
        """A slot that nobody has, of the process with the most of them; waits for one. Raises EngineBroken."""
        if self._problem is not None:
            raise self._problem
        open_processes = [process for process in self._processes.values() if process.is_ready and process.free_slots]
        if open_processes and not self._slot_waiters:
            process = max(open_processes, key=lambda item: len(item.free_slots))
            return Slot(process, process.free_slots.pop())
        assert self._loop is not None, "started"
        future: asyncio.Future[Slot] = self._loop.create_future()
        self._slot_waiters.append(future)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self.release(future.result())
            raise

    def release(self, slot: Slot) -> None:
        """Nobody has it any more."""
        if not slot.process.is_lost:
            slot.process.free_slots.append(slot.number)
            self._give_slots()

    async def ask(self, slot: Slot, message: Message, seconds: float) -> Frame:
        """Have the slot's environment reset or step. seconds: how long the process may be at it. Raises ProcessLost,
        SimulatorFailed, InvalidJob."""
        answer = await self.request(slot.process, {**message, "slot": slot.number}, seconds)
        frame: Frame = answer["frame"]
        return frame

    async def request(self, process: SimulatorProcess, message: Message, seconds: float) -> Message:
        """The answer of a process. Raises as `ask`."""
        if self._problem is not None:
            raise self._problem
        if process.is_lost:
            raise ProcessLost("died", "its process is gone", was_at_work=False)
        assert self._loop is not None
        self._num_calls += 1
        call = PendingRequest(self._num_calls, message, seconds, self._loop.create_future())
        process.waiting.append(call)
        self._begin_next(process)
        return await call.future

    def _begin_next(self, process: SimulatorProcess) -> None:
        while process.at_work is None and process.waiting:
            call = process.waiting.popleft()
            if call.future.done():  # who asked has been cancelled
                continue
            assert self._loop is not None and self._pipes is not None
            process.at_work = call
            call.timer = self._loop.call_later(call.seconds, self._late, process, call)
            process.user.send({"call": call.number, **call.message})
            self._pipes.flush(process.user)

    def _give_slots(self) -> None:
        while self._slot_waiters:
            process = max(
                (item for item in self._processes.values() if item.is_ready and item.free_slots),
                key=lambda item: len(item.free_slots),
                default=None,
            )
            if process is None:
                return
            waiter = self._slot_waiters.popleft()
            if not waiter.done():
                waiter.set_result(Slot(process, process.free_slots.pop()))

    # ---- processes

    def _launch(self) -> SimulatorProcess:
        assert self._loop is not None and self._pipes is not None
        num_slots = self.limits.environments
        memory, descriptor = ObservationMemory.create(num_slots)
        settings: Message = {"folder": True}
        if self.limits.memory_bytes is not None:
            settings["limits"] = (self.limits.memory_bytes, MOST_TASKS)
        hello = {"settings": self._settings.to_json(), "slots": num_slots}
        user = self._guardian.start(hello, settings, memory=descriptor)
        os.close(descriptor)
        process = SimulatorProcess(user, memory, self._loop.create_future(), list(range(num_slots)))
        self._processes[user.number] = process
        self._loop.add_reader(user.results, self._receive, process)
        seconds = self.limits.start_seconds
        message = f"making an environment took longer than {FIELD}.startSeconds {seconds:g}"
        process.starting = self._loop.call_later(seconds, partial(self._lose, process, "timed_out", message))
        self._pipes.flush(process.user)
        return process

    def _receive_endings(self) -> None:
        for user in self._guardian.receive():
            if (process := self._processes.get(user.number)) is not None:
                self._receive(process)
        if self._guardian.is_gone:
            assert self._loop is not None
            self._loop.remove_reader(self._guardian)
            self._fail(EngineBroken("the process that starts simulators has ended"))

    def _receive(self, process: SimulatorProcess) -> None:
        for message in process.user.receive():
            if not process.is_lost:
                self._take(process, message)
        if not process.is_lost and process.user.has_closed and self._loop is not None:
            self._loop.remove_reader(process.user.results)

    def _take(self, process: SimulatorProcess, message: Message) -> None:
        match message:
            case {"died": _}:
                killed = process.user.killed_for
                why = f"its process ended: {ending(process.user.returncode)}" if killed is None else f"it {killed[1]}"
                cause: FailureCause = "out_of_memory" if killed is not None and killed[0] == "OutOfMemory" else "died"
                self._lose(process, cause, why)
            case {"ready": {"low": list(low), "high": list(high)}} if not process.ready.done():
                self._is_ready(process, bounds_of(low, -np.inf), bounds_of(high, np.inf))
            case {"refused": str(why)} if not process.ready.done():
                process.ready.set_exception(InvalidJob(why))
                self._lose(process, "died", why)
            case {"call": int(number)} if process.at_work is not None and process.at_work.number == number:
                self._answered(process, process.at_work, message)

    def _is_ready(self, process: SimulatorProcess, low: np.ndarray, high: np.ndarray) -> None:
        self._num_failed_starts, self._has_started = 0, True
        if process.starting is not None:
            process.starting.cancel()
        process.ready.set_result(ActionBounds(low, high))
        self._give_slots()

    def _answered(self, process: SimulatorProcess, call: PendingRequest, message: Message) -> None:
        process.at_work = None
        if call.timer is not None:
            call.timer.cancel()
        if not call.future.done():
            match message:
                case {"refused": str(why)}:
                    call.future.set_exception(InvalidJob(why))
                case {"error": [cause, str(why)]}:
                    call.future.set_exception(SimulatorFailed(cause, why))
                case {"tasks": list()}:
                    call.future.set_result(message)
                case _:
                    call.future.set_result({"frame": frame_of(process.memory, call.message["slot"], message)})
        self._begin_next(process)

    def _late(self, process: SimulatorProcess, call: PendingRequest) -> None:
        is_reset = "steps" not in call.message
        what = "a reset" if is_reset else f"{len(call.message['steps'])} steps"
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
        if process.is_lost:
            return
        at_work, waiting = process.at_work, [*process.waiting]
        process.is_lost, process.at_work = True, None
        process.waiting.clear()
        del self._processes[process.user.number]
        for timer in (process.starting, None if at_work is None else at_work.timer):
            if timer is not None:
                timer.cancel()
        if self._pipes is not None:
            self._pipes.forget(process.user)
        if not process.ready.done():
            process.ready.set_exception(ProcessLost(cause, why, was_at_work=True))
            process.ready.exception()
        for call in [*([] if at_work is None else [at_work]), *waiting]:
            if not call.future.done():
                call.future.set_exception(ProcessLost(cause, why, was_at_work=call is at_work))
        process.user.close()
        process.memory.close()
        if self._pipes is not None:
            self._pipes.flush_guardian()

    def _fail(self, error: Exception) -> None:
        """There will be no more processes."""
        self._problem = self._problem or error
        for process in list(self._processes.values()):
            self._drop(process, "died", str(error))
        for waiter in self._slot_waiters:
            if not waiter.done():
                waiter.set_exception(error)
        self._slot_waiters.clear()
