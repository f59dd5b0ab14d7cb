"""The worker's handles on processes that run user code: the guardian, each of its forks, and programs without one.

Nothing here blocks: the caller waits for descriptors to become readable, in a selector or an event loop.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from rljob_worker.process.child import Child, command_of
from rljob_worker.process.open_files import allow_files
from rljob_worker.sandbox.guardian.framing import MESSAGE_BYTES, Lines, Message, Outbox, until_death
from rljob_worker.sandbox.targets import Cause

READ_BYTES = 1 << 16
WORKER_FILES = 8192
"""Open files of a worker with a process for each of a thousand trajectories."""


class UserProcess:
    """A process that runs user code. Close it once it is not wanted any more; it may be read until then."""

    def __init__(
        self,
        number: int,
        requests: int,
        results: int,
        output: int | None,
        *,
        end: Callable[[], None],
        forget: Callable[[], object] = lambda: None,
    ) -> None:
        """end: has it killed with everything it started.  forget: called once it is closed."""
        self.number = number
        self.requests, self.results, self.output = requests, results, output
        for descriptor in (requests, results, output):
            if descriptor is not None:
                os.set_blocking(descriptor, False)
        self.returncode: int | None = None
        self.killed_for: tuple[Cause, str] | None = None
        """Why the guardian killed it by itself, if it did: cause and message."""
        self._end, self._forget = end, forget
        self._unsent = Outbox()
        self._unread = Lines()
        self._has_closed = self._is_killed = False

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    @property
    def num_unread_bytes(self) -> int:
        """Bytes of a message that has not come to its end."""
        return self._unread.num_waiting_bytes

    def send(self, message: Message, blobs: Sequence[bytes] = ()) -> None:
        """Queue one message, with bytes behind it, and write what the pipe takes now."""
        self._unsent.add(message, blobs)
        self.flush()

    def send_body(self, body: bytes) -> None:
        """As `send`, for a message that is JSON already."""
        self._unsent.add_body(body)
        self.flush()

    def flush(self) -> None:
        """Write what the pipe takes; a process that is gone says so on its results."""
        try:
            self._unsent.write(lambda data: os.write(self.requests, data))
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._unsent.clear()

    def receive(self) -> list[Message]:
        """Every whole message that has arrived; the last is `{"died": code}` once its end is known."""
        returncode = self.returncode  # whatever it wrote before is there now
        lines: list[bytes] = []
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.results, READ_BYTES):
                lines += self._unread.take(data)
                if len(data) < READ_BYTES and returncode is None:  # the pipe is empty; its end is read the next time
                    break
            else:
                self._has_closed = True
                self.kill()  # it ends, or has closed what it has to answer by
        if returncode is not None:
            lines += self._unread.take(b"\n" + json.dumps({"died": returncode}).encode() + b"\n")
        return until_death(lines)

    @property
    def has_closed(self) -> bool:
        """Whether nothing more comes but the report of its end."""
        return self._has_closed

    def kill(self) -> None:
        """Have it and everything it started killed; its end is reported later."""
        if self.returncode is None and not self._is_killed:
            self._is_killed = True
            self._end()

    def close(self) -> None:
        """Kill it and forget it."""
        self.kill()
        self._forget()
        for descriptor in (self.requests, self.results, self.output):
            if descriptor is not None:
                os.close(descriptor)


class OwnProcess(UserProcess):
    """A program of this process's own, which nobody limits; its group ends with this process."""

    def __init__(self, module: str, environment: Mapping[str, str], hello: Message) -> None:
        """module: a program that becomes `beginning.begin_alone`; its first message is `hello`."""
        theirs, requests = os.pipe()
        results, answers = os.pipe()
        command = (*command_of(module), str(theirs), str(answers))
        self._child = Child(command, environment, descriptors=(theirs, answers), lifeline=True)
        _close_all((theirs, answers))
        super().__init__(self._child.pid, requests, results, None, end=self._collect)
        self.send(hello)

    def receive(self) -> list[Message]:
        if self.returncode is None and self._child.has_ended():  # copies of it may hold its end of the pipe
            self.kill()
        return super().receive()

    def _collect(self) -> None:
        self._child.kill()
        self.returncode = self._child.returncode()


class Guardian(Child):
    """A running `python -m rljob_worker.sandbox.guardian.guarding`; dies with the worker, and its forks with it."""

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        """module: of ours, whose `serve(requests, results)` every fork runs.  environment: of the guardian, and what
        a fork has whose environment is not bounded."""
        allow_files(WORKER_FILES)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [*command_of("rljob_worker.sandbox.guardian.guarding"), str(theirs.fileno()), module]
        super().__init__(command, environment, descriptors=(theirs.fileno(),))
        theirs.close()
        self._socket.setblocking(False)
        self._unsent: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._processes: dict[int, UserProcess] = {}
        self._num_started = 0
        self._is_gone = False

    def fileno(self) -> int:
        """Readable when a process has ended, or the guardian has."""
        return self._socket.fileno()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def start(
        self,
        hello: Message,
        settings: Message | None = None,
        *,
        keeps_output: bool = False,
        memory: int | None = None,
    ) -> UserProcess:
        """Fork a process, whose first message is `hello`. settings: as `guarding` has them.

        keeps_output: what it prints can be read from `output`; without, it goes where the worker's output goes.
        memory: descriptor of shared memory that it gets as `beginning.MEMORY`; it stays open here.
        """
        self._num_started += 1
        theirs, requests = os.pipe()
        results, answers = os.pipe()
        output, printed = os.pipe() if keeps_output else (None, None)
        number = self._num_started
        end, forget = partial(self.send, {"kill": number}), partial(self._processes.pop, number, None)
        process = UserProcess(number, requests, results, output, end=end, forget=forget)
        self._processes[number] = process
        shared = None if memory is None else os.dup(memory)
        given = tuple(item for item in (theirs, answers, shared, printed) if item is not None)
        self.send({"start": number, "memory": memory is not None, **(settings or {})}, given)
        process.send(hello)
        return process

    def send(self, message: Message, descriptors: tuple[int, ...] = ()) -> None:
        """Queue a message, and send what the socket takes; descriptors are closed here once they are sent."""
        self._unsent.append((json.dumps(message).encode(), descriptors))
        self.flush()

    def flush(self) -> None:
        """Send what the socket takes now."""
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                data, descriptors = self._unsent[0]
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    socket.send_fds(self._socket, [data], descriptors)
                _close_all(descriptors)
                self._unsent.popleft()

    def receive(self) -> list[UserProcess]:
        """Processes whose end was reported since; all of them when the guardian itself is gone."""
        ended = list[UserProcess]()
        with contextlib.suppress(BlockingIOError):
            while data := self._received():
                message = json.loads(data)
                process = self._processes.get(message["ended"])
                if process is not None:
                    process.returncode = message["code"]
                    process.killed_for = message["cause"] and tuple(message["cause"])
                    ended.append(process)
            self._is_gone = True
            for process in self._processes.values():
                if process.returncode is None:
                    process.returncode, process.killed_for = -signal.SIGKILL, ("Died", "the guardian ended")
                    ended.append(process)
        return ended

    @property
    def is_gone(self) -> bool:
        return self._is_gone

    def close(self) -> None:
        """Kill every process, and wait until they are gone."""
        for process in list(self._processes.values()):
            process.close()
        for _, descriptors in self._unsent:
            _close_all(descriptors)
        self._unsent.clear()
        self._socket.close()
        self.wait()

    def _received(self) -> bytes:
        try:
            return self._socket.recv(MESSAGE_BYTES)
        except ConnectionResetError:
            return b""


def ending(code: int | None) -> str:
    """How a process ended, in words: `exit code 3`, `signal SIGKILL`."""
    if code is None:
        return "no exit code yet"
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
