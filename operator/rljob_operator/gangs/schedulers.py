"""`Schedulers`: which gang scheduler or queue a job gets, as far as the cluster has to be asked for that."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Protocol

from rljob_operator.cluster.errors import Forbidden
from rljob_operator.cluster.kinds import PRIORITY_CLASS, WORKLOAD_PRIORITY_CLASS, Kind
from rljob_operator.gangs.choosing import select
from rljob_operator.gangs.gang import Gang
from rljob_operator.gangs.kueue.workload import PRIORITY_LABEL, QueuePriority
from rljob_operator.gangs.recent import Recent
from rljob_operator.manifests.context import JobContext
from rljob_operator.manifests.queues import is_queued

logger = logging.getLogger(__name__)


class Chooser(Protocol):
    """What chooses the gang of a job."""

    async def learn(self, context: JobContext) -> None:
        """Ask the cluster what `choose` is about to need."""
        ...

    def choose(self, context: JobContext) -> Gang:
        """The gang of a job; raises `Unserved` when the cluster lacks what the job needs."""
        ...


class Schedulers:
    """A `Chooser`; `served` are the API versions that the cluster has now."""

    def __init__(self, recent: Recent, served: Callable[[], Collection[str]]) -> None:
        self._recent = recent
        self._served = served
        self._priorities: dict[_Class, QueuePriority | None] = {}

    async def learn(self, context: JobContext) -> None:
        """The value of the priority class of a job that queues."""
        wanted = _class_of(context)
        if wanted is not None:
            self._priorities[wanted] = await self._priority(wanted)

    def choose(self, context: JobContext) -> Gang:
        wanted = _class_of(context)
        return select(context, self._served(), None if wanted is None else self._priorities.get(wanted))

    async def _priority(self, wanted: _Class) -> QueuePriority | None:
        """None where there is no such class, or it may not be looked at."""
        kind, name = wanted
        try:
            found = await self._recent.get(kind, name)
        except Forbidden as error:
            logger.info("the job queues without its priority: %s", error)
            return None
        return None if found is None else QueuePriority(kind.kind, name, int(found["value"]))


_Class = tuple[Kind, str]


def _class_of(context: JobContext) -> _Class | None:
    """Kueue's own class in the label of a job that queues, or the pods' class."""
    if not is_queued(context):
        return None
    own, pods = context.job.metadata.labels.get(PRIORITY_LABEL), context.spec.scheduling.priority_class_name
    if own:
        return WORKLOAD_PRIORITY_CLASS, own
    return None if pods is None else (PRIORITY_CLASS, pods)
