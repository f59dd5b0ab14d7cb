"""Frames over a stream socket: the length in four bytes, then as many bytes."""

from __future__ import annotations

import socket

LENGTH_BYTES = 4
_READ_BYTES = 1 << 20


class TooLong(ValueError):
    """A frame has more bytes than are read; nothing more can be read from its channel."""


def send_frame(channel: socket.socket, body: bytes) -> None:
    """Blocks until the whole frame is on its way. Raises OSError when the other side is gone or out of time."""
    channel.sendall(length_of(body) + body)


def receive_frame(channel: socket.socket, most: int) -> bytes:
    """The next frame. Raises EOFError at the end of the channel, TooLong for one of more than `most` bytes, OSError."""
    length = int.from_bytes(exactly(channel, LENGTH_BYTES), "big")
    if length > most:
        raise TooLong(f"{length:,} bytes, at most {most:,} are read")
    return exactly(channel, length)


def length_of(body: bytes) -> bytes:
    """What stands before it."""
    return len(body).to_bytes(LENGTH_BYTES, "big")


def exactly(channel: socket.socket, length: int) -> bytes:
    """The next `length` bytes. Raises EOFError when the channel ends before."""
    data = bytearray()
    while len(data) < length:
        part = channel.recv(min(length - len(data), _READ_BYTES))
        if not part:
            raise EOFError
        data += part
    return bytes(data)
