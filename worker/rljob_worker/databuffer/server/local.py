"""The server for the workers of this host: frames over a UNIX socket, one answer to each request.

A worker keeps its connections, and each has a thread here: a request costs two wake-ups and no look at who asks.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rljob_api.planning.plan import GroupPlan
from rljob_worker.databuffer.links.buffer_connection import MAX_BYTES
from rljob_worker.databuffer.links.faults import failed_by
from rljob_worker.databuffer.links.fencing import BufferService, Fence, Identity, InvalidCaller
from rljob_worker.databuffer.protocol.codec import encode, read_introduction, read_request
from rljob_worker.databuffer.protocol.errors import Bug, Malformed
from rljob_worker.databuffer.protocol.worker_answers import Done, TurnedAway, WorkerAnswer
from rljob_worker.databuffer.protocol.worker_calls import WorkerRequest
from rljob_worker.errors import RLJobError
from rljob_worker.process import frames

MAX_INTRODUCTION_BYTES = 64 << 10
INTRODUCTION_SECONDS = 10.0
CLOSE_SECONDS = 5.0
"""How long those who are being answered may keep the end waiting."""
BACKLOG = 128

WorkerSide = Callable[[Identity, WorkerRequest], WorkerAnswer]
"""What answers the workers of this host, within the seconds that a call may be held."""


def serve_workers(path: Path, ours: Identity, life: str, groups: Sequence[GroupPlan], side: WorkerSide) -> LocalServer:
    """The side for the workers of this host."""
    return LocalServer(path, Fence(ours, life, BufferService.WORKERS, groups), side)


class LocalServer:
    """A thread for each connection; errors of ours keep their names, others are a Bug."""

    def __init__(self, path: Path, fence: Fence, side: WorkerSide, max_bytes: int = MAX_BYTES) -> None:
        """max_bytes: of a request."""
        self._fence = fence
        self._side = side
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._closed = False
        self._open: dict[socket.socket, threading.Thread] = {}
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(BACKLOG)
        threading.Thread(target=self._accept, name="workers", daemon=True).start()

    def __enter__(self) -> LocalServer:
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()

    def shutdown(self) -> None:
        """Take no more requests; those who are being answered get their answers."""
        with self._lock:
            self._closed = True
            connections = dict(self._open)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes who accepts
        self._listener.close()
        for channel in connections:
            with contextlib.suppress(OSError):
                channel.shutdown(socket.SHUT_RD)
        end = time.monotonic() + CLOSE_SECONDS
        for thread in connections.values():
            thread.join(max(0.0, end - time.monotonic()))

    def _accept(self) -> None:
        while True:
            try:
                channel, _ = self._listener.accept()
            except OSError:
                if self._closed:
                    return
                time.sleep(0.05)  # no file descriptor is left, which may pass
                continue
            self._start(channel)

    def _start(self, channel: socket.socket) -> None:
        thread = threading.Thread(target=self._serve, args=(channel,), name="worker", daemon=True)
        with self._lock:
            if self._closed:
                channel.close()
                return
            self._open[channel] = thread
        try:
            thread.start()
        except RuntimeError:  # the system gives no more threads: the caller finds its connection closed
            self._end(channel)

    def _serve(self, channel: socket.socket) -> None:
        try:
            caller = self._admitted(channel)
            while caller is not None and (body := self._next(channel)) is not None:
                frames.send_frame(channel, self._answer(caller, body))
        except (OSError, EOFError):
            pass  # a worker that ends hangs up
        finally:
            self._end(channel)

    def _end(self, channel: socket.socket) -> None:
        with self._lock:
            self._open.pop(channel, None)
        channel.close()

    def _admitted(self, channel: socket.socket) -> Identity | None:
        """Whose connection this is; None for somebody who has been turned away."""
        channel.settimeout(INTRODUCTION_SECONDS)
        try:
            shown = read_introduction(frames.receive_frame(channel, MAX_INTRODUCTION_BYTES))
            identity = self._fence.admit(shown).identity
        except (InvalidCaller, Malformed, frames.TooLong) as error:
            frames.send_frame(channel, encode(TurnedAway(reason=str(error))))
            return None
        frames.send_frame(channel, encode(Done()))
        channel.settimeout(None)
        return identity

    def _next(self, channel: socket.socket) -> bytes | None:
        """The next request; None after one that is too long to be read, with which its connection ends."""
        try:
            return frames.receive_frame(channel, self._max_bytes)
        except frames.TooLong as error:
            frames.send_frame(channel, encode(failed_by(Malformed(f"a request of {error}"))))
            return None

    def _answer(self, caller: Identity, body: bytes) -> bytes:
        try:
            return encode(self._side(caller, read_request(body)))
        except RLJobError as error:
            return encode(failed_by(error))
        except Exception as error:
            return encode(failed_by(Bug(f"a request: {error!r}")))
