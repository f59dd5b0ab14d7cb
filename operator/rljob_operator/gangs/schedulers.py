"""`Schedulers`: which gang scheduler or queue a job gets, as far as the cluster has to be asked for that."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from rljob_operator.cluster.api import Cluster, Object
from rljob_operator.cluster.errors import Forbidden
from rljob_operator.cluster.kinds import PRIORITY_CLASS, WORKLOAD_PRIORITY_CLASS, ResourceKind
from rljob_operator.gangs.kueue.workload import PRIORITY_LABEL, QueuePriority
from rljob_operator.gangs.provider import GangProvider
from rljob_operator.gangs.selection import select
from rljob_operator.manifests.context import JobContext, is_queued

logger = logging.getLogger(__name__)

_GOOD_SECONDS = 60.0


class Recent:
    """Objects without a namespace that many jobs look at and that seldom change, flavors and priority classes: each is
    read once a minute at most."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._known: dict[tuple[ResourceKind, str], tuple[float, Object | None | Forbidden]] = {}

    async def get(self, kind: ResourceKind, name: str) -> Object | None:
        """The object as it was within the last minute; None when there was none.  A refusal is remembered as well."""
        known = self._known.get((kind, name))
        if known is None or self._clock() - known[0] >= _GOOD_SECONDS:
            known = self._known[kind, name] = self._clock(), await self._read(kind, name)
        if isinstance(known[1], Forbidden):
            raise known[1]
        return known[1]

    async def _read(self, kind: ResourceKind, name: str) -> Object | None | Forbidden:
        try:
            return await self._cluster.get(kind, None, name)
        except Forbidden as error:
            return error


class Schedulers:
    """`served` are the API versions that the cluster has now."""

    def __init__(self, recent: Recent, served: Callable[[], Collection[str]]) -> None:
        self._recent = recent
        self._served = served
        self._priorities: dict[_Class, QueuePriority | None] = {}

    async def learn(self, context: JobContext) -> None:
        """Ask the cluster what `choose` is about to need: the value of the priority class of a job that queues."""
        wanted = _class_of(context)
        if wanted is not None:
            self._priorities[wanted] = await self._priority(wanted)

    def choose(self, context: JobContext) -> GangProvider:
        """The gang of a job; raises `Unserved` when the cluster lacks what the job needs."""
        wanted = _class_of(context)
        return select(context, self._served(), None if wanted is None else self._priorities.get(wanted))

    async def _priority(self, wanted: _Class) -> QueuePriority | None:
        """None where there is no such class, or it may not be looked at."""
        kind, name = wanted
        try:
            result = await self._recent.get(kind, name)
        except Forbidden as error:
            logger.info("the job queues without its priority: %s", error)
            return None
        return None if result is None else QueuePriority(kind.kind, name, int(result["value"]))


_Class = tuple[ResourceKind, str]


def _class_of(context: JobContext) -> _Class | None:
    """Kueue's own class in the label of a job that queues, or the pods' class."""
    if not is_queued(context):
        return None
    own, pods = context.job.metadata.labels.get(PRIORITY_LABEL), context.spec.scheduling.priority_class_name
    if own:
        return WORKLOAD_PRIORITY_CLASS, own
    return None if pods is None else (PRIORITY_CLASS, pods)
