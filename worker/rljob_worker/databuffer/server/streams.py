"""The server of streams of bytes for peers (`protocol.streams`): a few threads, however many peers are slow or hang."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from rljob_worker import frames
from rljob_worker.databuffer.links.channel import notice_silence
from rljob_worker.databuffer.links.faults import failed_by
from rljob_worker.databuffer.links.fencing import Caller, Fence, Lie, check_certificate
from rljob_worker.databuffer.protocol.codec import encode, read_introduction, read_ticket
from rljob_worker.databuffer.protocol.errors import Bug, Malformed
from rljob_worker.databuffer.protocol.peer_side import Ticket
from rljob_worker.databuffer.protocol.streams import Coming, Held, Over
from rljob_worker.databuffer.protocol.worker_side import Done, Failed, TurnedAway
from rljob_worker.databuffer.server.talks import WRITE, Steps, Talks, receive_frame, send_all, shake_hands
from rljob_worker.errors import RLJobError

if TYPE_CHECKING:
    from rljob_worker.databuffer.links.credentials import Credentials

MAX_FRAME_BYTES = 64 << 10
"""Of an introduction or a ticket."""
NUM_THREADS = 4
BACKLOG = 1024

Gives = Callable[[Ticket], Iterable[Held]]
"""What there is for a ticket, now: never waits. Errors of ours reach the caller by name."""


class StreamServer:
    """At a port that the system chooses."""

    def __init__(self, host: str, fence: Fence, gives: Gives, credentials: Credentials | None = None) -> None:
        """host: an address of this machine; "0.0.0.0" for all. credentials: for mutual TLS; None takes plain text."""
        context = None if credentials is None else credentials.server_context()
        self._listener = _listening(host)
        self._listener.setblocking(False)
        self._talks = [
            Talks(self._listener, lambda connection: _Talk(connection, context, fence, gives))
            for _ in range(NUM_THREADS)
        ]

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def shutdown(self) -> None:
        """Hang up on everybody."""
        running, self._talks = self._talks, []
        for talks in running:
            talks.close()
        self._listener.close()


class _Talk:
    """With one caller: who it is, then tickets."""

    def __init__(self, plain: socket.socket, context: ssl.SSLContext | None, fence: Fence, gives: Gives) -> None:
        self.is_stranger = True
        self._fence = fence
        self._gives = gives
        notice_silence(plain)
        self.connection = plain
        if context is not None:
            self.connection = context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)

    def steps(self) -> Steps[None]:
        if isinstance(self.connection, ssl.SSLSocket):
            yield from shake_hands(self.connection)
        refusal = yield from self._refusal()
        yield from self._say(Done() if refusal is None else TurnedAway(reason=refusal))
        if refusal is not None:
            return
        self.is_stranger = False
        try:
            while True:
                ticket = yield from receive_frame(self.connection, MAX_FRAME_BYTES)
                for answer in self._answers(ticket):
                    yield from send_all(self.connection, answer)
                    yield WRITE  # others of this thread first
        except frames.TooLong as error:
            yield from self._say(failed_by(Malformed(f"a ticket of {error}")))

    def _refusal(self) -> Steps[str | None]:
        """Why this caller is not let in."""
        try:
            shown = read_introduction((yield from receive_frame(self.connection, MAX_FRAME_BYTES)))
            self._check_certificate(self._fence.admit(shown))
        except (Lie, Malformed, frames.TooLong) as error:
            return str(error)
        return None

    def _check_certificate(self, caller: Caller) -> None:
        if isinstance(self.connection, ssl.SSLSocket):
            shown = self.connection.getpeercert()
            assert shown is not None, "who shows none is not let in"
            check_certificate(caller.identity, str(shown["subjectAltName"][0][1]))

    def _answers(self, ticket: bytes) -> Iterator[list[memoryview]]:
        """Frames, each with the bytes that follow it."""
        try:
            for portion in self._gives(read_ticket(ticket)):
                yield [_frame(Coming(head=portion.head, num_bytes=portion.num_bytes)), *portion.places]
            yield [_frame(Over())]
        except RLJobError as error:
            yield [_frame(failed_by(error))]
        except Exception as error:
            yield [_frame(failed_by(Bug(f"a stream: {error!r}")))]

    def _say(self, answer: Done | TurnedAway | Failed) -> Steps[None]:
        yield from send_all(self.connection, [_frame(answer)])


def _frame(said: Done | TurnedAway | Coming | Over | Failed) -> memoryview:
    body = encode(said)
    return memoryview(frames.length_of(body) + body)


def _listening(host: str) -> socket.socket:
    """All addresses are those of both families where this machine has both, as they are for gRPC."""
    if host == "0.0.0.0" and socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # it may be there and switched off
            return socket.create_server(("", 0), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
    return socket.create_server((host, 0), backlog=BACKLOG)
