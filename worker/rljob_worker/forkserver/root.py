"""The root fork server of one machine: launchers that fit its environment get their own server as a fork of it."""

import os
import selectors
import signal
import socket
import traceback
from typing import Any, NoReturn

from rljob_worker.forkserver import wire
from rljob_worker.forkserver.appearance import appear_as
from rljob_worker.forkserver.becoming import take_environment
from rljob_worker.forkserver.environment import server_environment
from rljob_worker.forkserver.request import command_of
from rljob_worker.forkserver.server import Server
from rljob_worker.lifeline import collect_children, die_with
from rljob_worker.signal_pipe import SignalPipe

SERVER = "rljob_worker.forkserver"


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
                    channel, _ = self._listener.accept()
                    with channel:
                        self._welcome(channel, [selector, signals, self._listener])

    def _welcome(self, channel: socket.socket, ours: list[Any]) -> None:
        received = wire.receive(channel)
        if received is None:
            return
        hello, output = received
        refusal = self._refusal or ("its environment is another" if hello["key"] != self._key else None)
        root = os.getpid()
        if refusal is None and os.fork() == 0:
            _become_server(root, channel, hello["environment"], output, ours)
        for descriptor in output:
            os.close(descriptor)
        if refusal is not None:
            wire.send(channel, {"refused": refusal})


def _become_server(
    root: int, channel: socket.socket, environment: dict[str, str], output: list[int], ours: list[Any]
) -> NoReturn:
    try:
        die_with(root, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        for each in ours:
            each.close()
        for source, target in zip(output, (1, 2), strict=True):
            os.dup2(source, target)
            os.close(source)
        take_environment(server_environment(environment))
        appear_as(command_of(SERVER), environment)
        wire.send(channel, {"serving": os.getpid()})
        Server(channel, forks=True).serve()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)
