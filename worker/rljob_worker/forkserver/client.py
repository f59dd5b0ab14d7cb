"""The launcher's and the supervisor's side: start a fork server, ask it, hear from it."""

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from rljob_worker.forkserver import wire
from rljob_worker.forkserver.environment import ROOT, key, server_environment
from rljob_worker.forkserver.request import WorkerRequest, command_of
from rljob_worker.process.lifeline import dying_with_me

STDOUT, STDERR = 1, 2
MODULE = "rljob_worker.forkserver"
ROOT_SECONDS = 300.0
"""How long a root may take to answer; it answers at once after its imports."""


class ForkServer:
    """A launcher's fork server, whoever its parent is."""

    def __init__(self, channel: socket.socket, pid: int, process: "subprocess.Popen[bytes] | None" = None) -> None:
        """`process`: where the server is this process's own child."""
        self._channel = channel
        self.pid = pid
        self._process = process

    def fileno(self) -> int:
        """Readable when there is something to receive."""
        return self._channel.fileno()

    def ask(self, request: WorkerRequest) -> None:
        """Have a worker started; the request's descriptors stay the caller's to close."""
        # a server that is gone: the end of the channel tells it
        with contextlib.suppress(ConnectionError):
            wire.send(self._channel, request.message(), request.descriptors)

    def receive(self) -> wire.Message | None:
        """The next message (see `Server`); None once the server is gone."""
        received = wire.receive(self._channel)
        return None if received is None else received[0]

    def close(self) -> None:
        """End the server; one of this process's own at once, though it may still be importing."""
        self._channel.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def kill(self) -> None:
        """End the server and every worker of it, now."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def open_fork_server(environment: Mapping[str, str], preload: tuple[str, ...]) -> ForkServer:
    """A server for workers with `environment`: a fork of the root that it names, or a process of its own.

    `preload`: modules to import first; none where nothing will be forked.
    """
    if preload and environment.get(ROOT):
        server = _from_root(Path(environment[ROOT]), environment)
        if server is not None:
            return server
    return _own(environment, preload)


def _own(environment: Mapping[str, str], preload: tuple[str, ...]) -> ForkServer:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [*command_of(MODULE), "--channel", str(theirs.fileno()), "--preload", *preload],
            env=server_environment(environment),
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            process_group=0,
            preexec_fn=dying_with_me(signal.SIGKILL),
        )
    return ForkServer(ours, process.pid, process)


def _from_root(path: Path, environment: Mapping[str, str]) -> ForkServer | None:
    """None where the root is gone or refuses."""
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder = os.open(".", os.O_RDONLY)
    try:
        channel.settimeout(ROOT_SECONDS)
        channel.connect(str(path))
        hello = {"key": key(environment), "environment": dict(environment)}
        wire.send(channel, hello, (STDOUT, STDERR, folder))
        answer = wire.receive(channel)
    except OSError:
        answer = None
    finally:
        os.close(folder)
    if answer is not None and "serving" in answer[0]:
        channel.settimeout(None)
        return ForkServer(channel, answer[0]["serving"])
    channel.close()
    return None


@contextlib.contextmanager
def fork_root(environment: Mapping[str, str], preload: tuple[str, ...], path: Path, log: Path) -> Iterator[int]:
    """A root for launchers whose workers have `environment`, listening on `path`; its process id.

    It ends with the block, or with this process.
    """
    with log.open("ab") as output, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(socket.SOMAXCONN)  # here and now: who connects during the imports waits for their end
        asked = ("--listen", str(listener.fileno()), "--key", key(environment), "--preload", *preload)
        process = subprocess.Popen(
            [*command_of(MODULE), *asked],
            env=server_environment(environment),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            pass_fds=(listener.fileno(),),
            start_new_session=True,
            preexec_fn=dying_with_me(signal.SIGKILL),
        )
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()
        path.unlink(missing_ok=True)
