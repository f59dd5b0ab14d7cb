"""Messages on the pipes of reward processes. Every byte is touched a fixed number of times, however large a message is.

To the process: the length in eight bytes, then JSON. Back: a line of JSON each, which the reader can still follow
with one of its own when the process ends inside a line.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

Message = dict[str, Any]

_LENGTH_BYTES = 8


class Outbox:
    """Frames that wait for a pipe that takes a little at a time; what is left is never copied."""

    def __init__(self) -> None:
        self._waiting: deque[memoryview] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, message: Message) -> None:
        """Queue one message; numpy scalars go as Python numbers."""
        body = json.dumps(message, default=_plain).encode()
        self._waiting += (memoryview(len(body).to_bytes(_LENGTH_BYTES, "big")), memoryview(body))

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

    def take(self, data: bytes) -> list[bytes]:
        """Lines that `data` completes, without their ends."""
        first, *others = data.split(b"\n")
        self._parts.append(first)
        if not others:
            return []
        lines = [b"".join(self._parts), *others[:-1]]
        self._parts = [others[-1]]
        return lines


def until_death(lines: Iterable[bytes]) -> list[Message]:
    """Messages up to the process's end; an empty line, and the one it was writing when it died, is dropped."""
    messages: list[Message] = []
    for line in lines:
        try:
            messages.append(json.loads(line))
        except ValueError:
            continue
        if "died" in messages[-1]:
            break
    return messages


def receive_message(descriptor: int) -> Message | None:
    """The next message of a blocking pipe; None at its end, also inside a message."""
    length = _exactly(descriptor, _LENGTH_BYTES)
    body = None if length is None else _exactly(descriptor, int.from_bytes(length, "big"))
    return None if body is None else json.loads(body)


def _exactly(descriptor: int, num_bytes: int) -> bytearray | None:
    data = bytearray(num_bytes)
    left = memoryview(data)
    while left:
        count = os.readv(descriptor, [left])
        if not count:
            return None
        left = left[count:]
    return data


def _plain(value: Any) -> Any:
    return value.item()
