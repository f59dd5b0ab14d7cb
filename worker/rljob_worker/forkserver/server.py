"""The fork server of one pod: forks the workers that its launcher asks for and tells of their ends."""

import contextlib
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable

from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_worker.forkserver import wire
from rljob_worker.forkserver.becoming import become
from rljob_worker.forkserver.environment import shadowed
from rljob_worker.forkserver.leaving import flush_output, leave_as
from rljob_worker.forkserver.request import WorkerRequest
from rljob_worker.process.lifeline import die_with
from rljob_worker.process.signal_pipe import SignalPipe


class Server:
    """Single-threaded, and the parent of what it forks.

    <- a WorkerRequest with its descriptors
    -> {"forked": name, "pid": 123}
    -> {"ended": name, "status": 0}     as `os.waitstatus_to_exitcode` has it: -9 for SIGKILL
    """

    def __init__(self, channel: socket.socket, forks: bool) -> None:
        """`forks`: whether a request's module may run in a fork; otherwise its command is executed."""
        self._channel = channel
        self._forks = forks
        self._names: dict[int, str] = {}

    def serve(self) -> None:
        """Until the channel ends: the launcher is gone, and workers die with this process."""
        with SignalPipe((signal.SIGCHLD,)) as signals, selectors.DefaultSelector() as selector:
            selector.register(signals.fd, selectors.EVENT_READ)
            selector.register(self._channel, selectors.EVENT_READ)
            goes_on = True
            while goes_on:
                ready = {key.fd for key, _ in selector.select()}
                signals.read()
                with contextlib.suppress(OSError):  # a launcher that is gone: its channel ends
                    self._reap()
                    if self._channel.fileno() in ready:
                        goes_on = self._obey([selector.close, signals.close])

    def _obey(self, leave: list[Callable[[], None]]) -> bool:
        """One request; False at the end of the channel. `leave` drops in a fork what is the server's alone."""
        received = wire.receive(self._channel)
        if received is None:
            return False
        request = WorkerRequest.from_message(*received)
        try:
            pid = self._fork(request, [*leave, self._channel.close])
        except OSError as error:  # no process or no memory left here and now
            print(f"fork server: cannot fork {request.name}: {error.strerror}", file=sys.stderr, flush=True)
            wire.send(self._channel, {"ended": request.name, "status": int(ExitCode.RETRY)})
            return True
        finally:
            for descriptor in request.descriptors:
                os.close(descriptor)
        self._names[pid] = request.name
        wire.send(self._channel, {"forked": request.name, "pid": pid})
        return True

    def _fork(self, request: WorkerRequest, leave: list[Callable[[], None]]) -> int:
        server, runs_here = os.getpid(), self._runs_here(request)
        flush_output()
        pid = os.fork()
        if pid == 0:
            leave_as(lambda: _worker(server, request, leave, runs_here))
        return pid

    def _runs_here(self, request: WorkerRequest) -> bool:
        if not (self._forks and request.module):
            return False
        names = shadowed(request.environment, sys.modules)
        if names:
            print(
                f"fork server: {request.name} imports for itself: PYTHONPATH has its own {', '.join(names)}",
                file=sys.stderr,
                flush=True,
            )
        return not names

    def _reap(self) -> None:
        while self._names:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            name = self._names.pop(pid, None)
            if name is not None:
                wire.send(self._channel, {"ended": name, "status": os.waitstatus_to_exitcode(status)})


def _worker(server: int, request: WorkerRequest, leave: list[Callable[[], None]], runs_here: bool) -> int:
    die_with(server, signal.SIGKILL)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for drop in leave:
        drop()
    return become(request, runs_here)
