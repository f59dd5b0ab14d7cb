"""`python -m rljob_worker.sandbox.guardian.guarding SOCKET MODULE`: forks processes that run user code, and kills them.

SOCKET is the worker's end of messages, one datagram of JSON each; when it is closed every process is killed.

    <- {"start": 3, "folder": true, "environment": null, "confinement": {"mode": "Required", ...}, "limits": [1e9, 64]}
                                                               with its descriptors: pipes of requests and results,
                                                               where `"memory": true` shared memory, perhaps output
    <- {"start": 4, "copied": true, ...}                       it loads user code, and is copied then
    <- {"start": 5, "copy_of": 4, ...}
    <- {"kill": 3}
    -> {"ended": 3, "code": -9, "cause": null}                 in words, where the guardian killed it by itself

A process leads a group. Processes without a parent become the guardian's children, so it collects them too. It runs no
user code, and keeps no thread: its forks begin with one each.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

from rljob_worker.process.signal_pipe import SignalPipe
from rljob_worker.sandbox.confinement.confine import Confinement
from rljob_worker.sandbox.guardian.beginning import Beginning, begin
from rljob_worker.sandbox.guardian.copies import Copies
from rljob_worker.sandbox.guardian.framing import MESSAGE_BYTES, Message
from rljob_worker.sandbox.guardian.usage import GroupUsage, usage_of
from rljob_worker.sandbox.targets import Cause

MOST_DESCRIPTORS = 4
LOOK_SECONDS = 0.05
"""How often memory and processes are counted, at most."""
PR_SET_CHILD_SUBREAPER = 36


@dataclass(slots=True)
class _Fork:
    number: int
    pid: int
    folder: str | None
    memory_bytes: int | None
    """What its group may use; None: any number of processes, too."""
    most_tasks: int
    cause: tuple[Cause, str] | None = None


class GuardianServer:
    """The forks there are, and the socket to the worker."""

    def __init__(self, worker: socket.socket, module: ModuleType) -> None:
        self._worker = worker
        self._module = module
        self._forks: dict[int, _Fork] = {}
        """By number."""
        self._copies: dict[int, Copies] = {}
        """By number of what is copied."""
        self._folder: str | None = None
        """In which what is copied and its copies have theirs."""
        self._killed: set[int] = set()
        """Numbers of copies that are to be killed once they are there."""
        self._removing: set[int] = set()
        """Children that remove the folders of forks."""
        self._next_look = 0.0
        self._selector = selectors.DefaultSelector()

    def serve(self) -> None:
        """Until the worker closes the socket or dies."""
        with SignalPipe([signal.SIGCHLD]) as signals, self._selector as selector:
            selector.register(self._worker, selectors.EVENT_READ)
            selector.register(signals.fd, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select(self._seconds_to_look())}
                signals.read()
                self._collect()
                self._look()
                for copies in [copies for copies in self._copies.values() if copies.connection in ready]:
                    self._copied(copies, copies.receive())
                if self._worker in ready and not self._receive():
                    break
        self._end()

    def _receive(self) -> bool:
        """Whether the worker is still there."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._worker, MESSAGE_BYTES, MOST_DESCRIPTORS)
        except ConnectionResetError:
            return False
        if not data:
            return False
        message = json.loads(data)
        if "start" in message:
            self._start(message, descriptors)
        elif (fork := self._forks.get(message["kill"])) is not None:
            _kill_group(fork.pid)
        elif any(message["kill"] in copies.waiting for copies in self._copies.values()):
            self._killed.add(message["kill"])
        return True

    def _start(self, message: Message, descriptors: Sequence[int]) -> None:
        copies = self._copies.get(message.get("copy_of", 0))
        if message.get("folder"):
            message["folder"] = self._new_folder(is_inside="copied" in message or "copy_of" in message)
        if copies is not None and copies.can_be_made is not False:
            copies.add(message["start"], message, descriptors)
        else:
            self._fork(message, descriptors)

    def _new_folder(self, *, is_inside: bool) -> str:
        if is_inside and self._folder is None:
            self._folder = os.path.realpath(tempfile.mkdtemp(prefix="rljob-"))
        return os.path.realpath(tempfile.mkdtemp(prefix="rljob-", dir=self._folder if is_inside else None))

    def _fork(self, message: Message, descriptors: Sequence[int]) -> None:
        confinement = Confinement(**message["confinement"]) if message.get("confinement") else None
        beginning = Beginning(
            message.get("folder"),
            message.get("environment"),
            confinement,
            os.getpid(),
            has_memory=bool(message.get("memory")),
            is_copied=bool(message.get("copied")),
        )
        given = list(descriptors)
        if beginning.is_copied:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            given.insert(2, theirs.detach())
        pid = os.fork()
        if pid == 0:
            begin(beginning, given, self._module)
        for descriptor in given:
            os.close(descriptor)
        lead_own_group(pid)
        if beginning.is_copied:
            self._copies[message["start"]] = Copies(pid, ours)
            self._selector.register(ours, selectors.EVENT_READ)
        self._add(message, pid)

    def _add(self, message: Message, pid: int) -> None:
        number, folder = message["start"], message.get("folder")
        memory_bytes, most_tasks = message.get("limits") or (None, 0)
        self._forks[number] = _Fork(number, pid, folder, memory_bytes, most_tasks)
        if number in self._killed:
            self._killed.discard(number)
            _kill_group(pid)

    def _copied(self, copies: Copies, made: Sequence[tuple[int, int | None]]) -> None:
        """Take over copies that are there; start those otherwise that cannot be made."""
        for number, pid in made:
            message, descriptors = copies.waiting[number]
            if pid is not None and _leads_own_group(pid):
                self._add(message, pid)
                copies.let_go(number)
                for descriptor in descriptors:
                    os.close(descriptor)
            else:
                copies.let_go(number)
                self._fork(message, descriptors)
        if copies.can_be_made is False:
            with contextlib.suppress(KeyError):
                self._selector.unregister(copies.connection)

    def _seconds_to_look(self) -> float | None:
        if all(fork.memory_bytes is None for fork in self._forks.values()):
            return None
        return max(0.0, self._next_look - time.monotonic())

    def _look(self) -> None:
        """Kill groups that use more than they may. Takes at most a tenth of the time."""
        now = time.monotonic()
        limited = {fork.pid: fork for fork in self._forks.values() if fork.memory_bytes is not None}
        if not limited or now < self._next_look:
            return
        for pid, usage in usage_of(limited).items():
            if (cause := _excess(limited[pid], usage)) is not None and limited[pid].cause is None:
                limited[pid].cause = cause
                _kill_group(pid)
        self._next_look = time.monotonic() + max(LOOK_SECONDS, 9 * (time.monotonic() - now))

    def _collect(self) -> None:
        """Report forks that have ended, after what they started is killed."""
        with contextlib.suppress(ChildProcessError):
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                fork = next((fork for fork in self._forks.values() if fork.pid == ended.si_pid), None)
                if fork is not None:
                    _kill_group(fork.pid)  # as long as it is not collected the number of the group is its own
                _, status = os.waitpid(ended.si_pid, 0)
                self._removing.discard(ended.si_pid)
                if fork is not None:
                    self._report(fork, os.waitstatus_to_exitcode(status))

    def _report(self, fork: _Fork, code: int) -> None:
        del self._forks[fork.number]
        if (copies := self._copies.pop(fork.number, None)) is not None:
            self._copied(copies, copies.give_up())
            copies.connection.close()
        if fork.folder is not None:
            self._removing.add(_remove(fork.folder))
        report = {"ended": fork.number, "code": code, "cause": fork.cause}
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._worker.send(json.dumps(report).encode())

    def _end(self) -> None:
        for fork in self._forks.values():
            _kill_group(fork.pid)
        for fork in self._forks.values():
            os.waitpid(fork.pid, 0)
            if fork.folder is not None:
                shutil.rmtree(fork.folder, ignore_errors=True)
        for pid in self._removing:
            os.waitpid(pid, 0)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _excess(fork: _Fork, usage: GroupUsage) -> tuple[Cause, str] | None:
    assert fork.memory_bytes is not None
    if usage.num_tasks > fork.most_tasks:
        return "Died", f"had {usage.num_tasks} processes and threads, more than the {fork.most_tasks} that it may have"
    if usage.resident_bytes > fork.memory_bytes and usage.proportional_bytes() > fork.memory_bytes:
        return "OutOfMemory", f"used more than {fork.memory_bytes} bytes of memory with all that it started"
    return None


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _remove(folder: str) -> int:
    """In a child, whose pid is returned: a folder may hold a million files."""
    pid = os.fork()
    if pid == 0:
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)
    return pid


def lead_own_group(pid: int) -> None:
    """Give a child of this process a group of its own, as it does itself: the next message may be to kill it before it
    has. One that has begun a program has done so, and the kernel refuses to do it again."""
    with contextlib.suppress(PermissionError):
        os.setpgid(pid, pid)


def _leads_own_group(pid: int) -> bool:
    """Whether an inherited child has a group of its own now; not where it has ended, or is no child."""
    try:
        os.setpgid(pid, pid)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def main() -> None:
    worker, module = socket.socket(fileno=int(sys.argv[1])), importlib.import_module(sys.argv[2])
    for number in (signal.SIGINT, signal.SIGTERM):  # these mean workers, which still want answers
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    GuardianServer(worker, module).serve()


if __name__ == "__main__":
    main()
