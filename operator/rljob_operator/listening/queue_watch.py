"""`QueueWatch`: hears of jobs that a queue lets in or turns out, in a cluster that has one."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

from rljob_operator.cluster.api import Object
from rljob_operator.cluster.kinds import Kind
from rljob_operator.cluster.reflector import drop_bookkeeping
from rljob_operator.cluster.served import ServedApis


def drop_all_but_metadata(item: Object) -> None:
    """That a Workload changed is all there is to hear: the reconcile reads it afresh."""
    for field in item.keys() - {"metadata"}:
        del item[field]
    drop_bookkeeping(item)


class QueueWatch:
    """Watches Kueue's Workloads for as long as the API server has them; `watch` does so for a kind, until cancelled."""

    def __init__(self, served: ServedApis, watch: Callable[[Kind], Coroutine[Any, Any, None]]) -> None:
        self._served = served
        self._watch = watch

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            kind = await self._served.until(lambda: self._served.workloads)
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(self._watch(kind), name=f"watch {kind.resource}")
                await self._served.until(functools.partial(self._differs, kind))
                watching.cancel()

    def _differs(self, kind: Kind) -> bool | None:
        return self._served.workloads != kind or None
