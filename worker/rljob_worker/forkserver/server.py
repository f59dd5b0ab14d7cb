"""The fork server of one machine: forks what callers ask for, and reports how it ended."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable

from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_worker.forkserver import wire
from rljob_worker.forkserver.forking import ForkRequest, fork
from rljob_worker.process.child import signal_group
from rljob_worker.process.signal_pipe import SignalPipe

REQUEST_SECONDS = 5.0
"""How long a caller may take over one request, while others wait."""


class ForkingServer:
    """Single-threaded, and the parent of what it forks. Over the channel of one caller:

    <- a ForkRequest with its descriptors, and the key of its environment
    -> {"forked": name, "pid": 123}
    -> {"ended": name, "status": 0}     as `os.waitstatus_to_exitcode` has it: -9 for SIGKILL

    What a caller has asked for is killed when its channel ends.
    """

    def __init__(self, listener: socket.socket, key: str, forks: bool) -> None:
        """key: of the environment that forks may have; what has another one runs by itself, as everything does where
        this process cannot be forked."""
        self._listener = listener
        self._key = key
        self._forks = forks
        self._children: dict[int, tuple[socket.socket, str]] = {}
        """By process id: who asked for it, and its name."""

    def serve(self, lifeline: int) -> None:
        """Until the descriptor `lifeline` ends, with the process that started this one."""
        with SignalPipe((signal.SIGCHLD,)) as signals, selectors.DefaultSelector() as selector:
            for source in (signals.fd, lifeline, self._listener):
                selector.register(source, selectors.EVENT_READ)
            while lifeline not in (ready := {key.fd for key, _ in selector.select()}):
                signals.read()
                self._reap()
                if self._listener.fileno() in ready:
                    self._accept(selector)
                for channel in [key.fileobj for key in selector.get_map().values() if key.fd in ready]:
                    if isinstance(channel, socket.socket) and channel is not self._listener:
                        self._hear(channel, selector, [selector.close, signals.close])

    def _accept(self, selector: selectors.BaseSelector) -> None:
        with contextlib.suppress(OSError):  # no matter what this machine refuses, the next one is heard
            channel, _ = self._listener.accept()
            channel.settimeout(REQUEST_SECONDS)
            selector.register(channel, selectors.EVENT_READ)

    def _hear(self, channel: socket.socket, selector: selectors.BaseSelector, drop: list[Callable[[], None]]) -> None:
        """One request, or the end of the channel. No matter what the caller does, the next one is heard."""
        others = (key.fileobj for key in selector.get_map().values())
        sockets = [other.close for other in others if isinstance(other, socket.socket)]
        try:
            goes_on = self._obey(channel, [*sockets, *drop])
        except Exception as error:
            print(f"fork server: a request was not obeyed: {error!r}", file=sys.stderr, flush=True)
            goes_on = False
        if not goes_on:
            selector.unregister(channel)
            channel.close()
            for pid, (caller, _) in self._children.items():
                if caller is channel:
                    signal_group(pid, signal.SIGKILL)

    def _obey(self, channel: socket.socket, drop: list[Callable[[], None]]) -> bool:
        """False at the end of the channel. `drop` rids a fork of what is the server's alone."""
        received = wire.receive_with_descriptors(channel)
        if received is None:
            return False
        message, descriptors = received
        try:
            fits = message.pop("key") in (self._key, "")
            request = ForkRequest.from_message(message, descriptors)
            pid = fork(request, self._forks and fits, drop)
        except OSError as error:  # no process or no memory left here and now
            print(f"fork server: cannot fork {message['name']}: {error.strerror}", file=sys.stderr, flush=True)
            wire.send_with_descriptors(channel, {"ended": message["name"], "status": int(ExitCode.RETRY)})
            return True
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self._children[pid] = channel, request.name
        wire.send_with_descriptors(channel, {"forked": request.name, "pid": pid})
        return True

    def _reap(self) -> None:
        for pid in list(self._children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                channel, name = self._children.pop(pid)
                with contextlib.suppress(OSError):  # the caller is gone
                    wire.send_with_descriptors(channel, {"ended": name, "status": os.waitstatus_to_exitcode(status)})
