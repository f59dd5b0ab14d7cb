"""Connections that nobody uses now: kept for the next call, for a while."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class _Connected(Protocol):
    def fileno(self) -> int: ...

    def close(self) -> None: ...


C = TypeVar("C", bound=_Connected)

IDLE_SECONDS = 30.0


class Kept(Generic[C]):
    """May be used by several threads."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        """most: connections that are kept at a time."""
        self._most = most
        self._clock = clock
        self._lock = threading.Lock()
        self._idle: list[tuple[C, float]] = []
        """The one used last comes last, with the time since when."""
        self._closed = False

    def take(self) -> C | None:
        """The connection used last, of those that have not ended since."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection, _ = self._idle.pop()
            if not _has_news(connection):
                return connection
            connection.close()

    def keep(self, connection: C) -> None:
        """For the next call, unless there are enough."""
        with self._lock:
            is_kept = not self._closed and len(self._idle) < self._most
            if is_kept:
                self._idle.append((connection, self._clock()))
        if not is_kept:
            connection.close()

    def close_idle(self) -> None:
        """Hang up those that nobody has used for IDLE_SECONDS."""
        self._hang_up(self._clock() - IDLE_SECONDS)

    def hang_up(self) -> None:
        """All of them."""
        self._hang_up(float("inf"))

    def close(self) -> None:
        """Keep nothing from now on."""
        with self._lock:
            self._closed = True
        self.hang_up()

    def _hang_up(self, before: float) -> None:
        with self._lock:
            late = [connection for connection, since in self._idle if since <= before]
            self._idle = [(connection, since) for connection, since in self._idle if since > before]
        for connection in late:
            connection.close()


def _has_news(connection: _Connected) -> bool:
    """Whether there is something to read where nothing was asked: its end."""
    poller = select.poll()
    poller.register(connection, select.POLLIN)
    return bool(poller.poll(0))
