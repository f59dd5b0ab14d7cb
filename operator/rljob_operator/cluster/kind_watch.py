"""`KindWatch`: watches a kind that a cluster may have or not, for as long as it has it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from typing import Protocol

from rljob_operator.cluster.api import Object
from rljob_operator.cluster.kinds import Kind
from rljob_operator.cluster.served import ServedApis
from rljob_operator.vocabulary.key import Key


class WatchedKind(Protocol):
    """What a Reflector is."""

    @property
    def synced(self) -> bool: ...
    def of(self, key: Key) -> Sequence[Object]: ...
    async def run(self) -> None: ...


class KindWatch:
    """`kinds` is one kind in the versions that will do, the one to be preferred first; `reflect` makes what watches
    one of them. Without any there is nothing to watch, ever."""

    def __init__(self, served: ServedApis, kinds: Sequence[Kind], reflect: Callable[[Kind], WatchedKind]) -> None:
        self._served = served
        self._kinds = kinds
        self._reflect = reflect
        self._current: WatchedKind | None = None

    @property
    def kind(self) -> Kind | None:
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

    def _differs(self, kind: Kind) -> bool | None:
        return self.kind != kind or None
