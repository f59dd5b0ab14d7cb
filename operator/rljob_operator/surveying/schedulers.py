"""Which gang scheduler or queue a job gets, as far as the cluster has to be asked for that."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from rljob_operator.cluster.api import Cluster
from rljob_operator.cluster.errors import Forbidden
from rljob_operator.cluster.kinds import PRIORITY_CLASS, WORKLOAD_PRIORITY_CLASS
from rljob_operator.manifests.context import JobContext
from rljob_operator.manifests.gang import Gang, QueuePriority, select
from rljob_operator.manifests.gang.kueue_workload import PRIORITY_LABEL, is_queued

logger = logging.getLogger(__name__)


class Schedulers:
    """Asks the cluster before the adapter of a job is chosen; `served` are the API versions that it has now."""

    def __init__(self, cluster: Cluster, served: Callable[[], Collection[str]]) -> None:
        self._cluster = cluster
        self._served = served
        self._priorities: dict[str, QueuePriority | None] = {}

    async def learn(self, context: JobContext) -> None:
        """What `choose` is about to need: the value of the priority class of a job that queues."""
        if is_queued(context) and context.uid not in self._priorities:
            self._priorities[context.uid] = await self._priority(context)

    def choose(self, context: JobContext) -> Gang:
        """The adapter of a job; raises `Unserved` when the cluster lacks what the job needs."""
        return select(context, self._served(), self._priorities.get(context.uid))

    async def _priority(self, context: JobContext) -> QueuePriority | None:
        """Kueue's own class in the job's label, or the pods' class; None where neither is, or may be looked at."""
        own, pods = context.job.metadata.labels.get(PRIORITY_LABEL), context.spec.scheduling.priority_class_name
        kind, name = (WORKLOAD_PRIORITY_CLASS, own) if own else (PRIORITY_CLASS, pods)
        if name is None:
            return None
        try:
            found = await self._cluster.get(kind, None, name)
        except Forbidden as error:
            logger.info("the job queues without its priority: %s", error)
            return None
        return None if found is None else QueuePriority(kind.kind, name, int(found["value"]))
