"""`ServedApis`: which API versions the cluster has, for what is used only where it is there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rljob_operator.cluster.errors import ClusterError

logger = logging.getLogger(__name__)

_REFRESH_SECONDS = 60.0

T = TypeVar("T")


class ServedApis:
    """A set such as `{"kueue.x-k8s.io/v1beta2", ...}`, read at the start and again every minute: schedulers are
    installed while the operator runs."""

    def __init__(self, read: Callable[[], Awaitable[frozenset[str]]]) -> None:
        self._read = read
        self.versions: frozenset[str] = frozenset()
        self._changed = asyncio.Event()

    async def refresh(self) -> None:
        """Read them now; raises what the reading does."""
        found = await self._read()
        if found != self.versions:
            self.versions = found
            self._changed.set()
            self._changed = asyncio.Event()

    async def until(self, find: Callable[[], T | None]) -> T:
        """What `find` finds in `versions`, as soon as it does."""
        while (found := find()) is None:
            await self._changed.wait()
        return found

    async def run(self) -> None:
        """Keep them fresh until cancelled."""
        while True:
            await asyncio.sleep(_REFRESH_SECONDS)
            try:
                await self.refresh()
            except ClusterError as error:
                logger.warning("%s", error)
