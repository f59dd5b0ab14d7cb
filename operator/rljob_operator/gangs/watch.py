"""`QueueWatch`: hears of jobs that a queue lets in or turns out, in a cluster that has one."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from typing import Protocol

from rljob_operator.cluster.api import Object
from rljob_operator.cluster.kinds import WORKLOAD_KUEUE, WORKLOAD_KUEUE_V1BETA2, Kind
from rljob_operator.cluster.reflector import drop_bookkeeping
from rljob_operator.cluster.served import ServedApis
from rljob_operator.vocabulary.key import Key

WORKLOADS = (WORKLOAD_KUEUE_V1BETA2, WORKLOAD_KUEUE)
"""Newest first."""


def drop_pod_sets(item: Object) -> None:
    """What the queue says is read from here; the pods that were asked for are most of a Workload, and ours."""
    drop_bookkeeping(item)
    if "spec" in item:  # a bookmark has none
        item["spec"].pop("podSets", None)


class WatchedKind(Protocol):
    """What a Reflector is."""

    @property
    def synced(self) -> bool: ...
    def of(self, key: Key) -> Sequence[Object]: ...
    async def run(self) -> None: ...


class QueueWatch:
    """Watches Kueue's Workloads for as long as the API server has them; `reflect` makes what does so for a kind."""

    def __init__(self, served: ServedApis, reflect: Callable[[Kind], WatchedKind]) -> None:
        self._served = served
        self._reflect = reflect
        self._current: WatchedKind | None = None

    @property
    def kind(self) -> Kind | None:
        """Workloads as the cluster has them; None where there is no Kueue."""
        return next((kind for kind in WORKLOADS if kind.api_version in self._served.versions), None)

    def of(self, key: Key) -> Sequence[Object] | None:
        """The job's Workloads; None where they are not watched, or not known yet."""
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
