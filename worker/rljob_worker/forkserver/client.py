"""Starting a root fork server, asking one for processes, and hearing of these."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from rljob_worker.forkserver import wire
from rljob_worker.forkserver.environment import key, server_environment
from rljob_worker.forkserver.forking import ForkRequest
from rljob_worker.process.child import Child, Log, command_of, exit_code, signal_group

MODULE = "rljob_worker.forkserver"
END_SECONDS = 20.0
"""How long a root may take over the end of all processes with a mark."""


class ForkServer:
    """A connection to a root."""

    def __init__(self, path: Path, *, any_environment: bool = False) -> None:
        """Raises OSError where no root listens at `path`. any_environment: fork for any variables of a request."""
        self._any_environment = any_environment
        self._channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._channel.connect(str(path))
        except OSError:
            self._channel.close()
            raise

    def fileno(self) -> int:
        """Readable when there is something to receive."""
        return self._channel.fileno()

    def ask(self, request: ForkRequest) -> None:
        """Have a process started; the request's descriptors stay the caller's to close."""
        wanted = "" if self._any_environment else key(request.environment)
        # a root that is gone: the end of the channel tells it
        with contextlib.suppress(ConnectionError):
            wire.send_with_descriptors(self._channel, {**request.message(), "key": wanted}, request.descriptors)

    def receive(self) -> wire.Message | None:
        """The next message (see `Server`); None once the root is gone."""
        received = wire.receive_with_descriptors(self._channel)
        return None if received is None else received[0]

    def close(self) -> None:
        """End what was asked for over this connection."""
        self._channel.close()


class ForkedChild(Log):
    """A process that a root was asked for, as `Child` is one of this process's own."""

    def __init__(self, server: ForkServer, request: ForkRequest, log: Path) -> None:
        super().__init__(request.name, log)
        self.pid: int | None = None
        """None until it runs."""
        self._server = server
        self._code: int | None = None
        self._waiting: list[signal.Signals] = []
        server.ask(request)

    def code(self) -> int | None:
        """Shell-style exit code, or None while it runs, or has not begun yet."""
        while self._code is None and select.select([self._server], [], [], 0)[0]:
            self._hear()
        return self._code

    def signal(self, signum: signal.Signals) -> None:
        """Send to this process, once it runs; what it started is its own business."""
        if self.code() is None:
            self._waiting.append(signum)
            self._deliver()

    def kill(self) -> None:
        """End it and its process group; a root kills what it has yet to start."""
        if self.code() is None and self.pid is not None:
            signal_group(self.pid, signal.SIGKILL)
            while self._code is None:
                self._hear()
        self._server.close()
        self._code = exit_code(-signal.SIGKILL) if self._code is None else self._code

    def _hear(self) -> None:
        message = self._server.receive()
        if message is None:  # it died with its root
            self._code = exit_code(-signal.SIGKILL)
        elif "forked" in message:
            self.pid = message["pid"]
            self._deliver()
        else:
            self._code = exit_code(message["status"])

    def _deliver(self) -> None:
        if self.pid is not None:
            for signum in self._waiting:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signum)
            self._waiting.clear()


class Root:
    """The root of a run on this machine. It outlives this process by the moment in which it ends all processes with
    the run's marks and removes its scratch directory; one that was killed is started again when it is next needed."""

    def __init__(
        self,
        environment: Mapping[str, str],
        preload: Sequence[str],
        path: Path,
        log: Path | None,
        scratch: Path | None = None,
        marks: Sequence[str] = (),
    ) -> None:
        """environment: of the processes that are asked for.  preload: modules that are imported for all of them; none
        where nothing will be forked.  path: of the socket."""
        self.path = path
        self._key = key(environment)
        self._environment = server_environment(environment)
        self._log = log
        self._options = ["--preload", *preload, "--marks", *marks, "--scratch", str(scratch or "")]
        self._child = self._start()

    @property
    def pid(self) -> int:
        return self._child.pid

    def connect(self) -> ForkServer:
        with contextlib.suppress(OSError):
            return ForkServer(self.path)
        self._child.kill()
        self._child = self._start()
        return ForkServer(self.path)

    def close(self) -> None:
        self._child.signal(signal.SIGHUP)  # it may import, and see the end of its lifeline many seconds later
        self._child.end_lifeline(END_SECONDS)
        self._child.kill()
        self.path.unlink(missing_ok=True)

    def _start(self) -> Child:
        self.path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(self.path))
            listener.listen(socket.SOMAXCONN)  # here and now: who connects during the imports waits for their end
            command = [*command_of(MODULE), "--listen", str(listener.fileno()), "--key", self._key, *self._options]
            # inherited: what comes before it has a handler waits for that
            before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP,))
            try:
                return Child(
                    command,
                    self._environment,
                    output=self._log,
                    descriptors=(listener.fileno(),),
                    death_signal=signal.SIGHUP,
                    lifeline=True,
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
