"""A worker's calls to the data buffer of its own host: frames over a UNIX socket, one answer to each request, and
their connection pool."""

from __future__ import annotations

import contextlib
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rljob_worker.databuffer.links.faults import error_from, socket_errors_of, turned_away
from rljob_worker.databuffer.links.fencing import Identity, headers_of, introduction_of
from rljob_worker.databuffer.protocol.codec import encode, read_admission, read_answer
from rljob_worker.databuffer.protocol.worker_answers import Done, Failed, NotYet, TurnedAway, WorkerAnswer
from rljob_worker.databuffer.protocol.worker_calls import WaitingCall, WorkerCall
from rljob_worker.errors import DeadlineExceeded
from rljob_worker.process import frames

MAX_BYTES = 256 << 20
"""The largest request or answer that is read."""

MAX_CONNECTIONS = 64
"""Connections: a worker asks from a few threads."""

CALL_SECONDS = 30.0
GRACE_SECONDS = 10.0
"""The data buffer explains a time-out better than its client can: the client waits this much longer."""


class ConnectionPool:
    """A pool of connections that are kept for the next call; may be used by several threads."""

    def __init__(self, most: int) -> None:
        """most: connections that are kept at a time."""
        self._most = most
        self._lock = threading.Lock()
        self._idle: list[socket.socket] = []
        """The one used last comes last."""
        self._closed = False

    def take(self) -> socket.socket | None:
        """The connection used last, of those that have not ended since."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if not _has_news(connection):
                return connection
            connection.close()

    def keep(self, connection: socket.socket) -> None:
        """For the next call, unless there are enough."""
        with self._lock:
            is_kept = not self._closed and len(self._idle) < self._most
            if is_kept:
                self._idle.append(connection)
        if not is_kept:
            connection.close()

    def hang_up(self) -> None:
        """All of them."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def close(self) -> None:
        """Keep nothing from now on."""
        with self._lock:
            self._closed = True
        self.hang_up()


def _has_news(connection: socket.socket) -> bool:
    """Whether there is something to read where nothing was asked: its end."""
    poller = select.poll()
    poller.register(connection, select.POLLIN)
    return bool(poller.poll(0))


class BufferConnection:
    """Requests may come from several threads, each on a connection of its own while it lasts; connections are kept.

    Raises what the data buffer raised by name, PeerLost when it is gone.
    """

    def __init__(self, path: str | Path, identity: Identity) -> None:
        self.peer_name = f"the data buffer of host {identity.pod} (own sidecar, {path})"
        self._path = str(path)
        self._identity = identity
        self._life = secrets.token_hex()
        self._introduction = introduction_of(headers_of(identity, identity.pod, self._life, None))
        self._kept = ConnectionPool(MAX_CONNECTIONS)

    def expect(self, life: str) -> None:
        """Speak to this process only, and not to one that takes its place."""
        self._kept.hang_up()
        self._introduction = introduction_of(headers_of(self._identity, self._identity.pod, self._life, life))

    def call(self, request: WorkerCall) -> WorkerAnswer:
        """One answer; NotYet where the request has to wait."""
        with self._channel() as channel:
            frames.send_frame(channel, encode(request))
            answer: WorkerAnswer | Failed = read_answer(frames.receive_frame(channel, MAX_BYTES))
        if isinstance(answer, Failed):
            raise error_from(answer)
        return answer

    def poll(self, request: Callable[[float], WaitingCall], seconds: float) -> WorkerAnswer:
        """Ask until the answer is there: every call is short, so that a dead worker leaves nothing behind.

        request: makes the request of the seconds waited so far.
        """
        start = time.monotonic()
        while True:
            waited = time.monotonic() - start
            asked = request(waited)
            answer = self.call(asked)
            if not isinstance(answer, NotYet):
                return answer
            if waited > seconds + GRACE_SECONDS:
                raise DeadlineExceeded(f"{self.peer_name} had no answer to {asked} in {waited:.0f} s")

    def close(self) -> None:
        """Keep no connection; a call that still comes makes one of its own."""
        self._kept.close()

    @contextlib.contextmanager
    def _channel(self) -> Iterator[socket.socket]:
        """A connection that nobody else uses; kept for the next unless the block raises anything: then a late
        answer would be taken for the next one's."""
        with socket_errors_of(self.peer_name, CALL_SECONDS):
            channel = self._kept.take() or self._connected()
            try:
                yield channel
            except BaseException:
                channel.close()
                raise
        self._kept.keep(channel)

    def _connected(self) -> socket.socket:
        channel = socket.socket(socket.AF_UNIX)
        try:
            channel.settimeout(CALL_SECONDS)
            channel.connect(self._path)
            frames.send_frame(channel, self._introduction)
            admission: Done | TurnedAway = read_admission(frames.receive_frame(channel, MAX_BYTES))
            if isinstance(admission, TurnedAway):
                raise turned_away(self.peer_name, admission.reason)
        except BaseException:
            channel.close()
            raise
        return channel
