"""A host's way to host 0: called again and again until it answers, and then introduced."""

from __future__ import annotations

import contextlib
import random
import secrets
import select
import socket
import time

import msgspec

from rljob_worker.errors import DeadlineExceeded, InvalidJob
from rljob_worker.process import frames
from rljob_worker.supervision.hosts.connections import GREETING, OTHER_TOKEN
from rljob_worker.supervision.hosts.membership import Membership
from rljob_worker.supervision.hosts.messages import Hello, OfHost, OfHost0, encode_message, read_of_host_0
from rljob_worker.supervision.hosts.secret import NONCE_BYTES, Foreign, Seals
from rljob_worker.supervision.hosts.stream import FrameStream

MAX_MESSAGE_BYTES = 16 << 20
"""Bytes of a message of host 0, at most: the book of 65,536 hosts is 2 MB."""
CONNECT_SECONDS = 10.0
RETRY_SECONDS = 1.0
"""From one call to the next, more or less: a thousand hosts do not call at once."""


class Interrupted(Exception):
    """A signal came before host 0 answered."""


class Host0Connection:
    """To host 0: sealed messages in both directions."""

    def __init__(self, stream: FrameStream, seals: Seals, peer_name: str) -> None:
        self._stream = stream
        self._seals = seals
        self._peer_name = peer_name

    def fileno(self) -> int:
        return self._stream.fileno()

    @property
    def ended(self) -> str | None:
        """Why there will be no more."""
        return self._stream.ended

    @property
    def has_to_write(self) -> bool:
        return self._stream.has_to_write

    def send(self, message: OfHost) -> None:
        self._stream.send(self._seals.seal(encode_message(message)))

    def flush(self) -> None:
        self._stream.flush()

    def messages(self) -> list[OfHost0]:
        """What has come. Raises InvalidJob where the other side does not have the token."""
        return [self._message(frame) for frame in self._stream.frames()]

    def close(self) -> None:
        self._stream.close()

    def _message(self, frame: bytes) -> OfHost0:
        if frame == OTHER_TOKEN:
            raise InvalidJob(
                f"{self._peer_name} has another token: give all launchers of a job the same RLJOB_TOKEN; or it is "
                "another "
                "job's, then set MASTER_PORT to a port of this job's own on all hosts"
            )
        try:
            return read_of_host_0(self._seals.open(frame))
        except (Foreign, msgspec.DecodeError):
            raise InvalidJob(f"{self._peer_name} said what no launcher with this job's token says") from None


def call(membership: Membership, hello: Hello, token: str, seconds: float, wake: int) -> Host0Connection:
    """Introduced to host 0. wake: a file descriptor that is readable once a signal has come.

    Raises DeadlineExceeded where host 0 does not answer within the seconds, InvalidJob for another service at its
    address, Interrupted.
    """
    # host 0 itself need not be reachable by the name that others know it by
    where = ("127.0.0.1" if membership.host == 0 else membership.address, membership.port)
    peer_name = f"host 0 at {membership.address}:{membership.port}"
    end = time.monotonic() + seconds
    while True:
        try:
            return _called(where, hello, token, peer_name)
        except (OSError, EOFError) as error:
            why = (error.strerror if isinstance(error, OSError) else "") or str(error) or "it hung up"
        if time.monotonic() > end:
            raise DeadlineExceeded(
                f"{peer_name} does not answer within {seconds:.0f} s ({why}): its launcher does not run, or the "
                "port is "
                "closed to this host; see the output of host 0, or set MASTER_ADDR and MASTER_PORT"
            )
        readable, _, _ = select.select([wake], [], [], RETRY_SECONDS * random.uniform(0.5, 1.5))
        if readable:
            raise Interrupted


def _called(where: tuple[str, int], hello: Hello, token: str, peer_name: str) -> Host0Connection:
    with contextlib.ExitStack() as stack:
        channel = stack.enter_context(socket.create_connection(where, CONNECT_SECONDS))
        try:
            greeting = frames.receive_frame(channel, len(GREETING) + NONCE_BYTES)
        except frames.TooLong:
            greeting = b""
        if not greeting.startswith(GREETING) or len(greeting) != len(GREETING) + NONCE_BYTES:
            raise InvalidJob(
                f"what answers as {peer_name} is not an `rljob launch` of this version; set MASTER_PORT to a port "
                "of this "
                "job's own"
            )
        ours = secrets.token_bytes(NONCE_BYTES)
        frames.send_frame(channel, ours)
        stack.pop_all()
    connection = Host0Connection(
        FrameStream(channel, MAX_MESSAGE_BYTES), Seals(token, ours, greeting[len(GREETING) :]), peer_name
    )
    connection.send(hello)
    return connection
