"""The root fork server of one machine: launchers that fit its environment get their own server as a fork of it."""

import contextlib
import os
import selectors
import signal
import socket
import sys
from typing import Any

from rljob_worker.forkserver import wire
from rljob_worker.forkserver.appearance import appear_as
from rljob_worker.forkserver.becoming import take_environment
from rljob_worker.forkserver.environment import server_environment
from rljob_worker.forkserver.leaving import flush_output, leave_as
from rljob_worker.forkserver.request import command_of
from rljob_worker.forkserver.server import Server
from rljob_worker.process.lifeline import collect_children, die_with
from rljob_worker.process.signal_pipe import SignalPipe

SERVER = "rljob_worker.forkserver"
HELLO_SECONDS = 5.0
"""How long a caller may take to say what it wants, while others wait."""


class Root:
    """Listens on a socket.

    <- {"key": of the launcher's environment, "environment": {...}} with its standard output and error
    -> {"serving": process id}  and from here on the channel is that of a Server  |  {"refused": why}
    """

    def __init__(self, listener: socket.socket, key: str, refusal: str | None) -> None:
        """`refusal`: why this process cannot be forked, if so."""
        self._listener = listener
        self._key = key
        self._refusal = refusal

    def serve(self, lifeline: int) -> None:
        """Until the descriptor `lifeline` ends, with whoever started this process."""
        with SignalPipe((signal.SIGCHLD,)) as signals, selectors.DefaultSelector() as selector:
            for source in (signals.fd, lifeline, self._listener):
                selector.register(source, selectors.EVENT_READ)
            while lifeline not in (ready := {key.fd for key, _ in selector.select()}):
                if signals.read():
                    collect_children()
                if self._listener.fileno() in ready:
                    self._hear([selector, signals, self._listener])

    def _hear(self, ours: list[Any]) -> None:
        """One caller. Whatever it does, and whatever this machine refuses, the next one is heard."""
        try:
            channel, _ = self._listener.accept()
            with channel:
                channel.settimeout(HELLO_SECONDS)
                self._welcome(channel, ours)
        except Exception as error:
            print(f"root fork server: a launcher was not served: {error!r}", file=sys.stderr, flush=True)

    def _welcome(self, channel: socket.socket, ours: list[Any]) -> None:
        received = wire.receive(channel)
        if received is None:
            return
        hello, descriptors = received
        try:
            refusal = self._refusal or ("its environment is another" if hello["key"] != self._key else None)
            if refusal is not None:
                wire.send(channel, {"refused": refusal})
                return
            root = os.getpid()
            flush_output()
            if os.fork() == 0:
                leave_as(lambda: _server(root, channel, hello["environment"], descriptors, ours))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)


def _server(
    root: int, channel: socket.socket, environment: dict[str, str], descriptors: list[int], ours: list[Any]
) -> int:
    die_with(root, signal.SIGKILL)
    signal.set_wakeup_fd(-1)
    for each in ours:
        each.close()
    output, errors, folder = descriptors
    os.fchdir(folder)
    for source, target in ((output, 1), (errors, 2)):
        os.dup2(source, target)
    for descriptor in descriptors:
        os.close(descriptor)
    os.setpgid(0, 0)
    take_environment(server_environment(environment))
    appear_as(command_of(SERVER), environment)
    channel.settimeout(None)
    with contextlib.suppress(ConnectionError):  # the launcher has not waited
        wire.send(channel, {"serving": os.getpid()})
        Server(channel, forks=True).serve()
    return 0
