"""The processes that answer calls: started, given calls, read, and replaced when one is late or ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict

from rljob_worker.sandbox.calls.call_process import (
    LOOP_GRACE_SECONDS,
    CallProcess,
    CallQueue,
    Kind,
    PendingCall,
    answer_of,
)
from rljob_worker.sandbox.confinement.confine import Confinement, ConfinementMode, readable_paths
from rljob_worker.sandbox.guardian.framing import Message
from rljob_worker.sandbox.guardian.loop_processes import LoopProcesses
from rljob_worker.sandbox.guardian.user_processes import READ_BYTES, Guardian, UserProcess
from rljob_worker.sandbox.targets import Cause, Target

START_SECONDS = 300.0
"""How long a process may take to import modules of user code; a first import from network storage is slow."""
EXTRA_ANSWER_BYTES = 1 << 16
"""An answer's frame, and errors, which have limits of their own."""


class CallPool:
    """Shared processes, those of isolated sessions, and those of suspected calls. For one event loop."""

    def __init__(
        self,
        guardian: Guardian,
        targets: Mapping[str, Target],
        processes: int,
        confinement: ConfinementMode,
        proxy_port: int | None,
        ports: Sequence[int] = (),
    ) -> None:
        self._targets = targets
        self._num_processes = processes
        self._confinement = confinement
        self._proxy_port, self._ports = proxy_port, tuple(ports)
        self._asynchronous: dict[str, bool] = {}
        self.refused: dict[str, str] = {}
        """By target, why it cannot be called; known once a process has loaded it."""
        self.problem: str | None = None
        """Why there are no shared processes: importing user code ended them."""
        self._waiting = CallQueue(self._asynchronous)
        self._suspects: deque[PendingCall] = deque()
        self._waiting_for_core: deque[CallProcess] = deque()
        self._num_isolated_running = 0
        self._loop = asyncio.get_running_loop()
        self._processes: LoopProcesses[CallProcess] = LoopProcesses(
            guardian, self._take, self._end, lambda: None, read=self._limit_unread
        )
        self.copied: CallProcess | None = None
        """What isolated processes are copies of; None where nothing is isolated."""
        if any(target.isolated for target in targets.values()):
            self.copied = self.launch("Copied")
        if any(not target.isolated for target in targets.values()):
            for _ in range(processes):
                self.launch("Shared")

    @property
    def shared(self) -> list[CallProcess]:
        return [process for process in self._processes.processes if process.kind == "Shared"]

    def submit(self, call: PendingCall, process: CallProcess | None) -> None:
        """Have a call answered: by this process, or by any of the shared ones."""
        if call.name in self.refused:
            call.fail("Refused", self.refused[call.name])
        elif process is not None and process.lost is not None:
            call.fail("Died", f"the process that held this session's state is gone: {process.lost}")
        elif process is not None:
            process.waiting.add(call)
            self._fill(process)
        elif self.problem is not None:
            call.fail("Died", self.problem)
        else:
            self._waiting.add(call)
            self._fill_shared()

    def launch(self, kind: Kind) -> CallProcess:
        """Start a process, which loads the targets of its kind."""
        is_isolated = kind in ("Isolated", "Copied")
        own = {name: target for name, target in self._targets.items() if target.isolated == is_isolated}
        hello = {name: {"run": target.run, "options": dict(target.options)} for name, target in own.items()}

        def make(user: UserProcess) -> CallProcess:
            return CallProcess(user, kind, CallQueue(self._asynchronous), self._loop.create_future())

        process = self._processes.start(
            make,
            {"targets": hello},
            self._settings(kind, own.values()),
            seconds=START_SECONDS,
            late=f"importing {', '.join(target.run for target in own.values())} took longer than {START_SECONDS:g} s",
            keeps_output=True,
        )
        assert process.user.output is not None
        self._loop.add_reader(process.user.output, self._receive_output, process)
        return process

    def _settings(self, kind: Kind, targets: Collection[Target]) -> Message:
        """A process of these targets as `guarding` starts one."""
        memory_bytes = max(target.limits.memory_bytes for target in targets)
        settings: Message = {
            "folder": True,
            "limits": (memory_bytes, max(target.limits.processes for target in targets)),
        }
        if self._confinement != "Off":
            readable = readable_paths(path for target in targets for path in target.readable)
            confinement = Confinement(self._confinement, memory_bytes, self._proxy_port, readable, self._ports)
            settings["confinement"] = asdict(confinement)
        if kind == "Copied":
            settings["copied"] = True
        elif kind == "Isolated" and self.copied is not None:
            settings["copy_of"] = self.copied.user.number
        return settings

    def drop(self, process: CallProcess, why: str) -> None:
        """Kill a process and forget it."""
        if process.lost is not None:
            return
        for call in process.in_flight:
            if call.timer is not None:
                call.timer.cancel()
        self._processes.forget(process, why)
        if process.kind == "Isolated" and process.plain is not None:
            self._free_core()
        if not process.ready.done():
            process.ready.set_result(why)

    def close(self) -> None:
        """Kill every process; calls without an answer get the error Died."""
        unanswered = [*self._waiting.clear(), *self._suspects]
        for process in self._processes.processes:
            unanswered += [*process.in_flight, *process.waiting.clear()]
            self.drop(process, "calls were closed")
        if self._loop.is_closed():
            return
        self._processes.close()
        for call in unanswered:
            call.fail("Died", "calls were closed")

    def _fill_shared(self) -> None:
        for process in sorted(self.shared, key=lambda process: len(process.in_flight)):
            self._fill(process)

    def _fill(self, process: CallProcess) -> None:
        """Start what waits for a process that has room."""
        if process.kind == "Isolated" and self._num_isolated_running >= self._num_processes:
            self._waiting_for_core.append(process)
        elif (call := process.take_next(False, self._waiting)) is not None:
            self._num_isolated_running += process.kind == "Isolated"
            self._start(process, call, asynchronous=False)
        while (call := process.take_next(True, self._waiting)) is not None:
            self._start(process, call, asynchronous=True)

    def _free_core(self) -> None:
        self._num_isolated_running -= 1
        waiting, self._waiting_for_core = self._waiting_for_core, deque()
        while waiting and self._num_isolated_running < self._num_processes:
            if (process := waiting.popleft()).lost is None:
                self._fill(process)
        self._waiting_for_core.extendleft(reversed(waiting))

    def _start(self, process: CallProcess, call: PendingCall, *, asynchronous: bool) -> None:
        process.begin(call, asynchronous)
        call.started = self._loop.time()
        limit = call.target.limits.seconds + (LOOP_GRACE_SECONDS if asynchronous else 0.0)
        call.timer = self._loop.call_later(limit, self._time_out, process, call)
        self._processes.send(process, call.body)

    def _limit_unread(self, process: CallProcess) -> None:
        largest = max(target.limits.output_bytes for target in self._targets.values())
        if process.user.num_unread_bytes > largest + EXTRA_ANSWER_BYTES:
            self._lose(process, "OutputTooLarge", f"sent more than {largest} bytes", process.in_flight)

    def _end(self, process: CallProcess, cause: Cause, why: str) -> None:
        self._lose(process, cause, why, process.in_flight)

    def _take(self, process: CallProcess, message: Message) -> None:
        match message:
            case {"ready": dict(asynchronous), "refused": dict(refused)} if not process.ready.done():
                self._ready(process, asynchronous, refused)
            case {"call": int(number)} if (call := process.finish(number)) is not None:
                call.answer(answer_of(message, self._loop.time() - call.started))
                self._finished(process, call)

    def _ready(self, process: CallProcess, asynchronous: Mapping[str, bool], refused: Mapping[str, str]) -> None:
        self._asynchronous.update(asynchronous)
        self.refused.update(refused)
        process.ready.set_result(None)
        self._processes.has_started(process)
        for call in process.waiting.take_all_of(refused) + self._waiting.take_all_of(refused):
            call.fail("Refused", refused[call.name])
        self._fill(process)

    def _finished(self, process: CallProcess, call: PendingCall) -> None:
        if process.kind == "Alone":
            self.drop(process, "its only call has ended")
            self._ask_suspects()
        elif process.kind == "Isolated" and not self._asynchronous[call.name]:
            self._free_core()
        if process.lost is None:
            self._fill(process)

    def _time_out(self, process: CallProcess, call: PendingCall) -> None:
        """A plain call that is late is guilty; of several in the loop one holds it up, and nobody can tell which."""
        late = [call] if call is process.plain else list(process.in_loop.values())
        self._lose(process, "TimedOut", f"took longer than {call.target.limits.seconds:g} s", late)

    def _lose(self, process: CallProcess, cause: Cause, why: str, suspects: Sequence[PendingCall]) -> None:
        """End a process and see to its calls. Calls of functions are made again, those of several suspects alone."""
        in_flight, started = process.in_flight, process.ready.done()
        names = ", ".join(sorted({target.run for target in self._targets.values()}))
        gone = why if started else f"importing user code ({names}): {why}"
        self.drop(process, gone)
        for call in in_flight:
            if call in suspects and (len(suspects) == 1 or process.kind != "Shared"):
                call.fail(cause, why, self._loop.time() - call.started)
            elif process.kind != "Shared" or call.needs_object:
                self._lose_beside(call, why, may_be_made=started and process.kind == "Isolated")
            elif call in suspects:
                self._suspects.append(call)
            else:
                self._waiting.add(call)
        for call in process.waiting.clear():
            self._lose_beside(call, gone, may_be_made=started and process.kind == "Isolated")
        if process.kind == "Shared":
            self._replace(gone, started=started)
        self._ask_suspects()

    def _lose_beside(self, call: PendingCall, why: str, *, may_be_made: bool) -> None:
        """Fail a call whose process was ended for another one. may_be_made: by a new process of its session, where
        nothing counts on the one that ended."""
        call.is_lost = may_be_made and not call.needs_state
        call.fail("Died", f"the process that held this session's state is gone: {why}")

    def _replace(self, why: str, *, started: bool) -> None:
        """Start another shared process, unless user code cannot even be imported."""
        if not self._processes.is_guarded or (not started and not self._asynchronous and not self.refused):
            self.problem = why
            for call in [*self._waiting.clear(), *self._suspects]:
                call.fail("Died", why)
            self._suspects.clear()
        else:
            self.launch("Shared")
            self._fill_shared()

    def _ask_suspects(self) -> None:
        """Give each its own process, as many at once as sessions share."""
        num_alone = sum(process.kind == "Alone" for process in self._processes.processes)
        while self._suspects and num_alone < self._num_processes:
            if not (call := self._suspects.popleft()).future.done():
                process = self.launch("Alone")
                process.waiting.add(call)
                num_alone += 1

    def _receive_output(self, process: CallProcess) -> None:
        """Pass on what is printed, as much as its calls may."""
        assert process.user.output is not None
        try:
            data = os.read(process.user.output, READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove_reader(process.user.output)
            return
        with contextlib.suppress(OSError):
            sys.stdout.buffer.write(process.printed(data))
            sys.stdout.buffer.flush()
        if process.in_flight and process.num_printed_bytes > process.most_printed_bytes:
            message = f"printed more than {process.most_printed_bytes} bytes"
            self._lose(process, "OutputTooLarge", message, process.in_flight)
