"""`EventWriter`: writes Kubernetes events, one after the other and next to the work: they help people, and nothing
waits for them."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Iterable

from rljob_operator.cluster.api import Cluster, Object
from rljob_operator.cluster.errors import ApiError
from rljob_operator.cluster.kinds import EVENT
from rljob_operator.guard import Guard
from rljob_operator.reporting.events import Event, manifest
from rljob_operator.vocabulary.key import EventSubject

logger = logging.getLogger(__name__)

MAX_WAITING = 1000
"""The oldest are dropped: an API server that takes none must not fill our memory."""


class EventWriter:
    """Call `run` as a task."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float], guard: Guard | None = None) -> None:
        self._cluster = cluster
        self._clock = clock
        self._guard = guard or Guard()
        self._waiting: deque[tuple[EventSubject, Event, float]] = deque(maxlen=MAX_WAITING)
        self._arrival = asyncio.Event()

    def tell(self, subject: EventSubject, events: Iterable[Event]) -> None:
        """What just happened."""
        for event in events:
            logger.info("%s: %s", event.reason, event.note)
            self._waiting.append((subject, event, self._clock()))
        self._arrival.set()

    async def flush(self) -> None:
        """Write what waits.  That one cannot be written is not a reason to stop."""
        while self._waiting:
            subject, event, moment = self._waiting.popleft()
            with self._guard.around("events", f"{subject.namespace}/{subject.name}"):
                await self._write(subject, manifest(event, subject, moment, socket.gethostname()))

    async def _write(self, subject: EventSubject, body: Object) -> None:
        try:
            await self._cluster.create(EVENT, subject.namespace, body)
        except ApiError as error:
            logger.debug("no event: %s", error)

    async def run(self) -> None:
        """Write events until cancelled."""
        while True:
            await self._arrival.wait()
            self._arrival.clear()
            await self.flush()
