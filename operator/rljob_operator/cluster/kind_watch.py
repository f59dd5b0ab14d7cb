"""`KindWatch`: watches a kind that a cluster may have or not, for as long as `ServedApis` say that it has it."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from rljob_operator.cluster.api import Object
from rljob_operator.cluster.errors import ApiError
from rljob_operator.cluster.kinds import ResourceKind
from rljob_operator.cluster.reflector import Reflector
from rljob_operator.vocabulary.key import Key

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
        result = await self._read()
        if result != self.versions:
            self.versions = result
            self._changed.set()
            self._changed = asyncio.Event()

    async def until(self, find: Callable[[], T | None]) -> T:
        """What `find` finds in `versions`, as soon as it does."""
        while (result := find()) is None:
            await self._changed.wait()
        return result

    async def run(self) -> None:
        """Keep them fresh until cancelled."""
        while True:
            await asyncio.sleep(_REFRESH_SECONDS)
            try:
                await self.refresh()
            except ApiError as error:
                logger.warning("%s", error)


class KindWatch:
    """`kinds` is one kind in the versions that will do, the one to be preferred first; `reflect` makes what watches
    one of them. Without any there is nothing to watch, ever."""

    def __init__(
        self, served: ServedApis, kinds: Sequence[ResourceKind], reflect: Callable[[ResourceKind], Reflector]
    ) -> None:
        self._served = served
        self._kinds = kinds
        self._reflect = reflect
        self._current: Reflector | None = None

    @property
    def kind(self) -> ResourceKind | None:
        """As the cluster has it; None where it has none."""
        return next((kind for kind in self._kinds if kind.api_version in self._served.versions), None)

    def of(self, key: Key) -> Sequence[Object] | None:
        """The job's objects; None where they are not watched, or not known yet."""
        return self._current.of(key) if self._current is not None and self._current.synced else None

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            kind = await self._served.until(lambda: self.kind)
            async with asyncio.TaskGroup() as group:
                self._current = self._reflect(kind)
                watching = group.create_task(self._current.run(), name=f"watch {kind.resource}")
                await self._served.until(functools.partial(self._differs, kind))
                self._current = None
                watching.cancel()

    def _differs(self, kind: ResourceKind) -> bool | None:
        return self.kind != kind or None
