"""Messages with file descriptors over a UNIX stream socket: the length in four bytes, then JSON."""

import json
import os
import socket
from collections.abc import Sequence
from typing import Any

from rljob_worker.process.frames import LENGTH_BYTES, exactly, length_of

Message = dict[str, Any]

_MAX_DESCRIPTORS = 8


def send_with_descriptors(channel: socket.socket, message: Message, descriptors: Sequence[int] = ()) -> None:
    """Blocks until the whole message is on its way. Raises OSError when the other side is gone."""
    body = json.dumps(message).encode()
    # descriptors travel with the first byte; four bytes are never split
    socket.send_fds(channel, [length_of(body)], list(descriptors))
    channel.sendall(body)


def receive_with_descriptors(channel: socket.socket) -> tuple[Message, list[int]] | None:
    """The next message and its descriptors, which are the caller's to close; None at the end of the channel.

    Raises TimeoutError where the channel has a time limit, ValueError for what is not a message; nothing stays open.
    """
    descriptors: list[int] = []
    try:
        header, descriptors, _, _ = socket.recv_fds(
            channel, LENGTH_BYTES, _MAX_DESCRIPTORS, getattr(socket, "MSG_CMSG_CLOEXEC", 0)
        )
        length = int.from_bytes(header + exactly(channel, LENGTH_BYTES - len(header)), "big")
        return json.loads(exactly(channel, length)), descriptors
    except BaseException as error:
        for descriptor in descriptors:
            os.close(descriptor)
        if isinstance(error, (EOFError, ConnectionError)):
            return None
        raise
