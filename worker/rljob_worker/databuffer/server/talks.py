"""Connections of many peers on one thread, none of which it waits for.

What is said on a connection is a generator, which yields `READ` or `WRITE` where it has to wait for its peer. The
connection ends with it, and with whatever it raises.
"""

from __future__ import annotations

import os
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import Protocol, TypeVar

from rljob_worker import frames
from rljob_worker.databuffer.protocol.streams import Places

T = TypeVar("T")

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE

Steps = Generator[int, None, T]

STRANGER_SECONDS = 10.0
"""How long a peer may take to say who it is."""
LOOK_SECONDS = 1.0
NO_DESCRIPTOR_SECONDS = 0.05
CLOSE_SECONDS = 5.0


class Talk(Protocol):
    """What is said on one connection."""

    connection: socket.socket
    is_stranger: bool
    """Until it is known who calls."""

    def steps(self) -> Steps[None]: ...


class _Open:
    """A connection."""

    def __init__(self, talk: Talk, since: float) -> None:
        self.talk, self.since = talk, since
        self.steps = talk.steps()


class Talks:
    """One thread and its connections. Several may share a listener: whoever is idle takes the next call."""

    def __init__(self, listener: socket.socket, begin: Callable[[socket.socket], Talk]) -> None:
        """listener: does not block. begin: what is said on a new connection, which does not block either."""
        self._listener = listener
        self._begin = begin
        self._selector = selectors.DefaultSelector()
        self._open: set[_Open] = set()
        self._strangers: set[_Open] = set()
        self._end = os.eventfd(0)
        """Can be read once this is over."""
        self._selector.register(listener, READ)
        self._selector.register(self._end, READ)
        self._thread = threading.Thread(target=self._run, name="streams", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Hang up."""
        os.eventfd_write(self._end, 1)
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select(LOOK_SECONDS if self._strangers else None):
                if key.fileobj == self._end:
                    self._hang_up()
                    return
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._go_on(key.data)
            self._end_strangers(time.monotonic() - STRANGER_SECONDS)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return  # another thread was quicker
        except OSError:
            time.sleep(NO_DESCRIPTOR_SECONDS)  # no file descriptor is left, which may pass
            return
        connection.setblocking(False)
        try:
            talk = self._begin(connection)
        except OSError:  # it has hung up already
            connection.close()
            return
        opened = _Open(talk, time.monotonic())
        self._open.add(opened)
        self._strangers.add(opened)
        self._selector.register(talk.connection, READ, opened)
        self._go_on(opened)

    def _go_on(self, opened: _Open) -> None:
        try:
            awaited = next(opened.steps)
        except Exception:  # its end, or whatever else: the other connections go on
            self._close(opened)
        else:
            self._selector.modify(opened.talk.connection, awaited, opened)
            if not opened.talk.is_stranger:
                self._strangers.discard(opened)

    def _end_strangers(self, before: float) -> None:
        for opened in [each for each in self._strangers if each.since <= before]:
            self._close(opened)

    def _close(self, opened: _Open) -> None:
        self._open.discard(opened)
        self._strangers.discard(opened)
        self._selector.unregister(opened.talk.connection)
        opened.steps.close()
        opened.talk.connection.close()

    def _hang_up(self) -> None:
        for opened in list(self._open):
            self._close(opened)
        self._selector.close()
        os.close(self._end)


def shake_hands(connection: ssl.SSLSocket) -> Steps[None]:
    """Until both ends have shown their certificates."""
    while True:
        try:
            connection.do_handshake()
        except ssl.SSLWantReadError:
            yield READ
        except ssl.SSLWantWriteError:
            yield WRITE
        else:
            return


def receive_frame(connection: socket.socket, most: int) -> Steps[bytes]:
    """The next frame. Raises EOFError at the end of the connection, TooLong for one of more than `most` bytes."""
    length = int.from_bytes((yield from _exactly(connection, frames.LENGTH_BYTES)), "big")
    if length > most:
        raise frames.TooLong(f"{length:,} bytes, at most {most:,} are read")
    return (yield from _exactly(connection, length))


def send_all(connection: socket.socket, places: Sequence[memoryview]) -> Steps[None]:
    """Everything, straight from where it lies."""
    left, plain = Places(places), not isinstance(connection, ssl.SSLSocket)
    while left:
        try:
            left.went(connection.sendmsg(left.next) if plain else connection.send(left.first))
        except (BlockingIOError, ssl.SSLWantWriteError):
            yield WRITE
        except ssl.SSLWantReadError:
            yield READ


def _exactly(connection: socket.socket, length: int) -> Steps[bytes]:
    data = bytearray()
    while len(data) < length:
        try:
            part = connection.recv(length - len(data))
        except (BlockingIOError, ssl.SSLWantReadError):
            yield READ
        except ssl.SSLWantWriteError:
            yield WRITE
        else:
            if not part:
                raise EOFError
            data += part
    return bytes(data)
