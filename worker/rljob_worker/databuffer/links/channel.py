"""One connection on which a peer gives bytes for tickets (`protocol.streams`), one ticket after the other."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Sequence

from rljob_worker import frames
from rljob_worker.databuffer.links.faults import cause_of, turned_away
from rljob_worker.databuffer.protocol.codec import read_admission, read_stream_answer
from rljob_worker.databuffer.protocol.streams import Coming, Over, Places, Take
from rljob_worker.databuffer.protocol.worker_side import Done, Failed, TurnedAway

MAX_ANSWER_BYTES = 64 << 20
"""Of a frame; the bytes of portions are no part of one."""
SILENT_SECONDS = 30
"""A host that died without a word is given up after about so long."""


class Channel:
    """For one thread at a time. Raises OSError or EOFError where the peer is gone, TimeoutError at `end`.

    end: by `time.monotonic`, of everything that is said from then on.
    """

    def __init__(
        self, address: str, introduction: bytes, whom: str, end: float, context: ssl.SSLContext | None
    ) -> None:
        """Connect to host:port and be let in. context: for mutual TLS. Raises Refused where that is not granted."""
        self._whom = whom
        self._end = end
        host, _, port = address.rpartition(":")
        plain = socket.create_connection((host.strip("[]"), int(port)), self._left())
        self._socket = plain
        try:
            notice_silence(plain)
            if context is not None:
                self._socket = context.wrap_socket(plain, server_hostname=host.strip("[]"))
            self._be_let_in(introduction)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def stream(self, ticket: bytes, end: float, take: Take) -> None:
        """Hand out what the peer has for a ticket, portion by portion. Raises what it raises, by name."""
        self._end = end
        self._socket.settimeout(self._left())
        frames.send(self._socket, ticket)
        while not isinstance(answer := read_stream_answer(self._frame()), Over):
            if isinstance(answer, Failed):
                raise cause_of(answer)
            portion = _OnTheWay(self, answer)
            take(portion)
            assert portion.is_here, "a portion is brought somewhere before the next comes"

    def fill(self, places: Sequence[memoryview]) -> None:
        """Receive as many bytes as there are places for."""
        left = Places(places)
        plain = not isinstance(self._socket, ssl.SSLSocket)
        while left:
            self._socket.settimeout(self._left())
            count = self._socket.recvmsg_into(left.next)[0] if plain else self._socket.recv_into(left.first)
            if not count:
                raise EOFError
            left.went(count)

    def _be_let_in(self, introduction: bytes) -> None:
        self._socket.settimeout(self._left())
        frames.send(self._socket, introduction)
        admission: Done | TurnedAway = read_admission(self._frame())
        if isinstance(admission, TurnedAway):
            raise turned_away(self._whom, admission.reason)

    def _frame(self) -> bytes:
        self._socket.settimeout(self._left())
        return frames.receive(self._socket, MAX_ANSWER_BYTES)

    def _left(self) -> float:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("its time is over")
        return left


class _OnTheWay:
    """A portion whose bytes the connection brings."""

    def __init__(self, channel: Channel, announced: Coming) -> None:
        self.head, self.num_bytes = announced.head, announced.num_bytes
        self.is_here = False
        self._channel = channel

    def into(self, places: Sequence[memoryview]) -> None:
        assert sum(map(len, places)) == self.num_bytes, "places for exactly what comes"
        self._channel.fill(places)
        self.is_here = True


def notice_silence(connection: socket.socket) -> None:
    """Bytes leave at once, and a host at the other end that is gone is noticed although it says nothing."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENT_SECONDS // 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, SILENT_SECONDS // 6)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_SECONDS * 1000)
