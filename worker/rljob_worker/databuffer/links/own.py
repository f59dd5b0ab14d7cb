"""A worker's calls to the data buffer of its own host: frames over a UNIX socket, one answer to each request."""

from __future__ import annotations

import contextlib
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rljob_worker import frames
from rljob_worker.databuffer.links.faults import cause_of, silent, too_late, turned_away
from rljob_worker.databuffer.links.fencing import Identity, headers_of
from rljob_worker.databuffer.protocol.codec import encode, read_admission, read_answer
from rljob_worker.databuffer.protocol.worker_side import (
    Done,
    Failed,
    NotYet,
    Request,
    TurnedAway,
    Waiting,
    WorkerAnswer,
)
from rljob_worker.errors import DeadlineExceeded, RLJobError

MAX_BYTES = 256 << 20
"""The largest request or answer that is read."""
CALL_SECONDS = 30.0
GRACE_SECONDS = 10.0
"""The data buffer explains a time-out better than its client can: the client waits this much longer."""


class OwnBuffer:
    """Requests may come from several threads, each on a connection of its own while it lasts; connections are kept.

    Raises what the data buffer raised by name, PeerLost when it is gone.
    """

    def __init__(self, path: str | Path, identity: Identity) -> None:
        self.whom = f"the data buffer of host {identity.pod} (own sidecar, {path})"
        self._path = str(path)
        self._identity = identity
        self._life = secrets.token_hex()
        self._introduction = introduction_of(identity, self._life, None)
        self._lock = threading.Lock()
        self._idle: list[socket.socket] = []
        self._closed = False

    def expect(self, life: str) -> None:
        """Speak to this process only, and not to one that takes its place."""
        self._hang_up()
        self._introduction = introduction_of(self._identity, self._life, life)

    def call(self, request: Request) -> WorkerAnswer:
        """One answer; NotYet where the request has to wait."""
        with self._channel() as channel:
            frames.send(channel, encode(request))
            answer: WorkerAnswer | Failed = read_answer(frames.receive(channel, MAX_BYTES))
        if isinstance(answer, Failed):
            raise cause_of(answer)
        return answer

    def poll(self, request: Callable[[float], Waiting], seconds: float) -> WorkerAnswer:
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
                raise DeadlineExceeded(f"{self.whom} had no answer to {asked} in {waited:.0f} s")

    def close(self) -> None:
        """Keep no connection; a call that still comes makes one of its own."""
        with self._lock:
            self._closed = True
        self._hang_up()

    def _hang_up(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for channel in idle:
            channel.close()

    @contextlib.contextmanager
    def _channel(self) -> Iterator[socket.socket]:
        """A connection that nobody else uses; kept for the next unless the block raises, whatever it is: then a late
        answer would be taken for the next one's."""
        with self._errors():
            channel = self._kept() or self._connected()
            try:
                yield channel
            except BaseException:
                channel.close()
                raise
        with self._lock:
            is_kept = not self._closed
            if is_kept:
                self._idle.append(channel)
        if not is_kept:
            channel.close()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except RLJobError:  # some of ours are errors of the system as well
            raise
        except TimeoutError as error:
            raise too_late(self.whom, f"{CALL_SECONDS:g} s") from error
        except (OSError, EOFError) as error:
            raise silent(self.whom, str(error) or "it hung up") from error

    def _kept(self) -> socket.socket | None:
        """The connection used last, of those that have not ended since."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                channel = self._idle.pop()
            if not _has_news(channel):
                return channel
            channel.close()

    def _connected(self) -> socket.socket:
        channel = socket.socket(socket.AF_UNIX)
        try:
            channel.settimeout(CALL_SECONDS)
            channel.connect(self._path)
            frames.send(channel, self._introduction)
            admission: Done | TurnedAway = read_admission(frames.receive(channel, MAX_BYTES))
            if isinstance(admission, TurnedAway):
                raise turned_away(self.whom, admission.reason)
        except BaseException:
            channel.close()
            raise
        return channel


def introduction_of(identity: Identity, own_life: str, expected_life: str | None) -> bytes:
    """The first frame of a connection. Raises InvalidJob for an empty token."""
    shown = headers_of(identity, own_life, expected_life)
    return encode({name.decode(): [value.decode()] for name, value in shown})


def _has_news(channel: socket.socket) -> bool:
    """Whether there is something to read where nothing was asked: its end."""
    poller = select.poll()
    poller.register(channel, select.POLLIN)
    return bool(poller.poll(0))
