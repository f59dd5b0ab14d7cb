"""Processes of a guardian in an event loop: started, written to, read, and forgotten.

What a message means, what becomes of calls without an answer, and whether a process is replaced is the owner's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from rljob_worker.sandbox.guardian.framing import Message
from rljob_worker.sandbox.guardian.user_processes import Guardian, UserProcess, ending
from rljob_worker.sandbox.targets import Cause


@dataclass(eq=False, slots=True)
class LoopProcess:
    """A process as the event loop knows it."""

    user: UserProcess
    lost: str | None = field(default=None, kw_only=True)
    """Why it is gone, with its objects."""
    starting: asyncio.TimerHandle | None = field(default=None, kw_only=True)
    """Calls when it has taken too long to start."""


Process = TypeVar("Process", bound=LoopProcess)


class LoopProcesses(Generic[Process]):
    """All of one guardian, by number."""

    def __init__(
        self,
        guardian: Guardian,
        take: Callable[[Process, Message], None],
        lose: Callable[[Process, Cause, str], None],
        guardian_gone: Callable[[], None],
        *,
        read: Callable[[Process], None] | None = None,
    ) -> None:
        """take: what a process that is not lost says. lose: it has ended, or was late to start; the owner calls
        `forget`. guardian_gone: nothing can be started any more. read: called when what a process said was taken."""
        self._guardian, self._take, self._lose, self._gone, self._read = guardian, take, lose, guardian_gone, read
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(guardian, self._receive_endings)
        self._processes: dict[int, Process] = {}
        self._is_writing: set[int] = set()
        """Processes whose pipes are full."""
        self._guardian_is_full = False

    @property
    def processes(self) -> list[Process]:
        """Those that are not lost."""
        return list(self._processes.values())

    @property
    def is_guarded(self) -> bool:
        """Whether processes can be started."""
        return not self._guardian.is_gone

    def start(
        self,
        make: Callable[[UserProcess], Process],
        hello: Message,
        settings: Message,
        *,
        seconds: float,
        late: str,
        keeps_output: bool = False,
        memory: int | None = None,
    ) -> Process:
        """A new one, which has so long until `has_started`. late: what is said of it then. Other arguments are those of
        `Guardian.start`."""
        process = make(self._guardian.start(hello, settings, keeps_output=keeps_output, memory=memory))
        self._processes[process.user.number] = process
        self._loop.add_reader(process.user.results, self._receive, process)
        process.starting = self._loop.call_later(seconds, partial(self._lose, process, "TimedOut", late))
        self._flush(process)
        self._flush_guardian()
        return process

    def has_started(self, process: Process) -> None:
        """It is not late."""
        if process.starting is not None:
            process.starting.cancel()

    def send(self, process: Process, body: bytes) -> None:
        """Give it a message that is JSON already."""
        process.user.send_body(body)
        self._flush(process)

    def forget(self, process: Process, why: str) -> None:
        """Kill it, with everything that it started; nothing more is heard of it."""
        process.lost = why
        self.has_started(process)
        del self._processes[process.user.number]
        self._is_writing.discard(process.user.number)
        if not self._loop.is_closed():
            self._loop.remove_writer(process.user.requests)
            for descriptor in (process.user.results, process.user.output):
                if descriptor is not None:
                    self._loop.remove_reader(descriptor)
        process.user.close()
        self._flush_guardian()

    def close(self) -> None:
        """Watch the guardian no longer."""
        if not self._loop.is_closed():
            self._loop.remove_reader(self._guardian)
            self._loop.remove_writer(self._guardian)

    def _flush(self, process: Process) -> None:
        """Write what its pipe does not take at once as it does; most messages it takes."""
        user, number = process.user, process.user.number
        if user.has_unsent and number not in self._is_writing:
            self._is_writing.add(number)
            self._loop.add_writer(user.requests, self._write, process)

    def _write(self, process: Process) -> None:
        process.user.flush()
        if not process.user.has_unsent:
            self._is_writing.discard(process.user.number)
            self._loop.remove_writer(process.user.requests)

    def _flush_guardian(self) -> None:
        self._guardian.flush()
        if self._guardian.has_unsent == self._guardian_is_full or self._loop.is_closed():
            return
        self._guardian_is_full = self._guardian.has_unsent
        if self._guardian_is_full:
            self._loop.add_writer(self._guardian, self._flush_guardian)
        else:
            self._loop.remove_writer(self._guardian)

    def _receive_endings(self) -> None:
        for user in self._guardian.receive():
            if (process := self._processes.get(user.number)) is not None:
                self._receive(process)
        if self._guardian.is_gone:
            self._loop.remove_reader(self._guardian)
            self._gone()

    def _receive(self, process: Process) -> None:
        for message in process.user.receive():
            if process.lost is None and "died" in message:
                cause, why = process.user.killed_for or (
                    "Died",
                    f"its process ended: {ending(process.user.returncode)}",
                )
                self._lose(process, cause, why)
            elif process.lost is None:
                self._take(process, message)
        if process.lost is None and process.user.has_closed:
            self._loop.remove_reader(process.user.results)
            self._flush_guardian()
        if process.lost is None and self._read is not None:
            self._read(process)
