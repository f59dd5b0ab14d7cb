"""A pool of connections that are kept for the next call."""

from __future__ import annotations

import select
import socket
import threading


class Kept:
    """May be used by several threads."""

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
