"""Copies of a process that has loaded user code, which begin without importing anything.

The guardian asks for one over a socket, a datagram of JSON each:

    -> {"loaded": true}                                    once
    <- {"copy": 7, "folder": "/tmp/rljob-a/rljob-b"}       with its descriptors: a gate, pipes of requests and results,
                                                           perhaps output
    -> {"copy": 7, "pid": 4711}                            null where it could not be forked

A copy is forked twice: its parent ends at once, and the guardian inherits it. The copy waits until the other end of the
gate is closed, by when the guardian has given it a process group. Threads and open files of user code cannot be copied:
where an import left some, each process imports for itself.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NoReturn

from rljob_worker.sandbox.guardian.framing import MESSAGE_BYTES, Message
from rljob_worker.sandbox.guardian.usage import num_tasks_of

SOCKET = 5
"""The descriptor of the process's end, the last that it may have open."""
MOST_DESCRIPTORS = 4
MOST_ASKED = 16
"""Copies that are under way at once, so that neither end of the socket ever waits for the other to read."""

Begin = Callable[[str, Sequence[int]], NoReturn]
"""Becomes a copy, in a folder, with its pipes."""


@dataclass(slots=True)
class Copies:
    """Copies of one process, as the guardian asks for them."""

    pid: int
    connection: socket.socket
    can_be_made: bool | None = None
    """None until it has loaded."""
    waiting: dict[int, tuple[Message, Sequence[int]]] = field(default_factory=dict)
    """How processes are started that are no copies yet, by number, with their descriptors."""
    _unasked: deque[int] = field(default_factory=deque)
    _gates: dict[int, int] = field(default_factory=dict)
    """The guardian's ends, by number of copies that were asked for."""

    def add(self, number: int, message: Message, descriptors: Sequence[int]) -> None:
        """Ask for a copy. message: has its folder."""
        self.waiting[number] = (message, descriptors)
        self._unasked.append(number)
        self._ask()

    def receive(self) -> list[tuple[int, int | None]]:
        """Number and process id of copies that are there; None of one that cannot be made."""
        try:
            data = self.connection.recv(MESSAGE_BYTES)
        except ConnectionResetError:
            data = b""
        if not data:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)  # with copies that it has forked and not named
            self.can_be_made = False  # what waits is started once the process is collected
            return []
        message = json.loads(data)
        if "loaded" not in message:
            return [(message["copy"], message["pid"])] if message["copy"] in self.waiting else []
        self.can_be_made = num_tasks_of(self.pid) == 1 and _has_no_other_files(self.pid)
        if not self.can_be_made:
            return self.give_up()
        self._ask()
        return []

    def give_up(self) -> list[tuple[int, int | None]]:
        """No more can be made; those that wait."""
        self.can_be_made = False
        self._unasked.clear()
        return [(number, None) for number in self.waiting]

    def let_go(self, number: int) -> None:
        """A copy may begin, or is none."""
        self.waiting.pop(number)
        if (gate := self._gates.pop(number, None)) is not None:
            os.close(gate)
        self._ask()

    def _ask(self) -> None:
        while self.can_be_made and self._unasked and len(self._gates) < MOST_ASKED:
            number = self._unasked.popleft()
            message, descriptors = self.waiting[number]
            gate, self._gates[number] = os.pipe()
            asked = json.dumps({"copy": number, "folder": message["folder"]}).encode()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its end is reported as such
                socket.send_fds(self.connection, [asked], [gate, *descriptors])
            os.close(gate)


def serve_copies(begin: Begin) -> None:
    """In the process: make copies until the guardian closes the socket."""
    gc.collect()
    gc.freeze()  # collections of copies would copy every page of it
    with socket.socket(fileno=SOCKET) as guardian:
        guardian.send(json.dumps({"loaded": True}).encode())
        while True:
            data, descriptors, _, _ = socket.recv_fds(guardian, MESSAGE_BYTES, MOST_DESCRIPTORS)
            if not data:
                return
            message = json.loads(data)
            pid = _forked(partial(_begin, begin, message["folder"], descriptors))
            for descriptor in descriptors:
                os.close(descriptor)
            guardian.send(json.dumps({"copy": message["copy"], "pid": pid}).encode())


def _begin(begin: Begin, folder: str, descriptors: Sequence[int]) -> NoReturn:
    gate, *pipes = descriptors
    os.read(gate, 1)
    begin(folder, pipes)


def _forked(become: Callable[[], NoReturn]) -> int | None:
    """The process id of a fork whose parent has ended; None where there is no room for one."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    read_end, write_end = os.pipe()
    try:
        child = os.fork()
    except OSError:
        os.close(write_end)
        os.close(read_end)
        return None
    if child == 0:
        with contextlib.suppress(OSError):
            pid = os.fork()
            if pid == 0:
                become()
            os.write(write_end, str(pid).encode())
        os._exit(0)
    os.close(write_end)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)
    answer = os.read(read_end, 32)
    os.close(read_end)
    return int(answer) if answer else None


def _has_no_other_files(pid: int) -> bool:
    try:
        return all(int(name) <= SOCKET for name in os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return False
