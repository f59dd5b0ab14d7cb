"""Messages on the pipes of processes that run user code. Every byte is touched a fixed number of times, however large
a message is.

To the process: the length in eight bytes, then JSON, then the bytes of its `blobs`, whose lengths the JSON has. Back: a
line of JSON each, which the reader can still follow with one of its own when the process ends inside a line.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from typing import Any

Message = dict[str, Any]

MESSAGE_BYTES = 1 << 16
"""The longest message to or from the guardian, a datagram."""
_LENGTH_BYTES = 8
_SHORT_BYTES = 1 << 14
"""Bytes of a body that is copied behind its length."""


class Outbox:
    """Frames that wait for a pipe that takes a little at a time; what is left is never copied."""

    def __init__(self) -> None:
        self._waiting: deque[memoryview] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, message: Message, blobs: Sequence[bytes | memoryview] = ()) -> None:
        """Queue one message; numpy scalars go as Python numbers. blobs: bytes that go behind it as they are, and are
        `message["blobs"]` to who receives it."""
        if blobs:
            message = {**message, "blobs": [len(blob) for blob in blobs]}
        self.add_body(json.dumps(message, default=_plain).encode())
        self._waiting += (memoryview(blob) for blob in blobs if len(blob))

    def add_body(self, body: bytes) -> None:
        """Queue one message that is JSON already."""
        length = len(body).to_bytes(_LENGTH_BYTES, "big")
        if len(body) <= _SHORT_BYTES:  # in one piece: who waits for it wakes once
            self._waiting.append(memoryview(length + body))
        else:
            self._waiting += (memoryview(length), memoryview(body))

    def write(self, write: Callable[[memoryview], int]) -> None:
        """Hand over what `write` takes, which answers with a number of bytes; an error of its loses nothing."""
        while self._waiting:
            taken = write(self._waiting[0])
            left = self._waiting.popleft()[taken:]
            if left:
                self._waiting.appendleft(left)

    def clear(self) -> None:
        self._waiting.clear()


class Lines:
    """Whole lines out of bytes that come in any pieces; what has come of a line is not looked at again."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.num_waiting_bytes = 0
        """Bytes of the line that has no end yet."""

    def take(self, data: bytes) -> list[bytes]:
        """Lines that `data` completes, without their ends."""
        first, *others = data.split(b"\n")
        self._parts.append(first)
        self.num_waiting_bytes += len(first)
        if not others:
            return []
        lines = [b"".join(self._parts), *others[:-1]]
        self._parts = [others[-1]]
        self.num_waiting_bytes = len(others[-1])
        return lines


def until_death(lines: Iterable[bytes]) -> list[Message]:
    """Messages up to the process's end; a line that is no message, such as the one it was writing when it died, is
    dropped."""
    messages: list[Message] = []
    for line in lines:
        try:
            message = _decoder.decode(line.decode())
        except (ValueError, RecursionError):  # user code can write into the pipe
            continue
        if not isinstance(message, dict):
            continue
        messages.append(message)
        if "died" in messages[-1]:
            break
    return messages


def receive_message(descriptor: int) -> Message | None:
    """The next message of a blocking pipe; None at its end, also inside a message."""
    length = _exactly(descriptor, _LENGTH_BYTES)
    body = None if length is None else _exactly(descriptor, int.from_bytes(length, "big"))
    if body is None:
        return None
    message: Message = json.loads(body)
    blobs = [_exactly(descriptor, num_bytes) for num_bytes in message.get("blobs", ())]
    if None in blobs:
        return None
    return {**message, "blobs": blobs} if blobs else message


def _exactly(descriptor: int, num_bytes: int) -> bytearray | None:
    data = bytearray(num_bytes)
    left = memoryview(data)
    while left:
        count = os.readv(descriptor, [left])
        if not count:
            return None
        left = left[count:]
    return data


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_refuse)


def _plain(value: Any) -> Any:
    return value.item()


class Results:
    """A process's pipe back to the worker; refuses to write from a copy of it that user code forked."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._owner = os.getpid()
        self._lock = Lock()

    def send(self, message: Message) -> None:
        self.send_text(json.dumps(message))

    def send_text(self, text: str) -> None:
        """Send what is JSON already. Threads may call it at once."""
        if os.getpid() != self._owner:
            os._exit(0)  # user code forked and its copy came back here
        left = memoryview(text.encode() + b"\n")
        with self._lock:
            while left:
                left = left[os.write(self._descriptor, left) :]
