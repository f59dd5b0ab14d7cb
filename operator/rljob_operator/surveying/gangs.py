"""`Gangs`: reads what the queue or gang scheduler of a job says of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from rljob_operator import names
from rljob_operator.cluster.api import Cluster, Object
from rljob_operator.cluster.kinds import Kind, kind_of
from rljob_operator.manifests.context import JobContext
from rljob_operator.manifests.gang import Gang, Unserved
from rljob_operator.manifests.gang.none import Ungrouped
from rljob_operator.manifests.ownership import is_child_of
from rljob_operator.states import Refusal, Situation
from rljob_operator.states.conditions import Reason
from rljob_operator.vocabulary.key import Key

Select = Callable[[JobContext], Gang]
Learn = Callable[[JobContext], Awaitable[None]]


async def _nothing_to_learn(context: JobContext) -> None:
    pass


class Gangs:
    """One for all jobs; `select` chooses a job's adapter, once `learn` has asked the cluster what that depends on."""

    def __init__(
        self,
        cluster: Cluster,
        select: Select,
        learn: Learn = _nothing_to_learn,
        workloads: Callable[[], Kind | None] = lambda: None,
    ) -> None:
        """`workloads`: Kueue's kind, where the cluster has it."""
        self._cluster = cluster
        self._select = select
        self._learn = learn
        self._workloads = workloads

    def of(self, context: JobContext) -> Gang:
        """The adapter of this job; where the cluster lacks it, there is nothing to write to either."""
        try:
            return self._select(context)
        except Unserved:
            return Ungrouped()

    async def look(self, context: JobContext, situation: Situation) -> Situation:
        """The situation with what the queue says."""
        await self._learn(context)
        try:
            gang = self._select(context)
        except Unserved as error:
            refusal = Refusal(Reason.SCHEDULER_MISSING, str(error))
            return replace(situation, refusal=situation.refusal or refusal)
        objects = await self.objects(context, gang, max(situation.status.attempt, 1))
        return replace(
            situation,
            admission=gang.admission(objects),
            has_queue=gang.provider == "Kueue",
            waits_for_all=gang.provider != "None",
        )

    async def objects(self, context: JobContext, gang: Gang, attempt: int) -> list[Object]:
        """The live objects of the gang; one of somebody else that bears the name is none."""
        found = [
            await self._cluster.get(kind_of(each), context.namespace, each["metadata"]["name"])
            for each in gang.objects(context, attempt)
        ]
        objects = [each for each in found if each is not None and is_child_of(each, context.uid)]
        return objects + [each for each in await self._references(gang, objects) if each is not None]

    async def _references(self, gang: Gang, objects: list[Object]) -> list[Object | None]:
        return [
            await self._cluster.get(kind_of({"apiVersion": each.api_version, "kind": each.kind}), None, each.name)
            for each in gang.references(objects)
        ]

    async def unplanned(self, key: Key) -> Object | None:
        """What a job asked of its queue while it could be planned, where it no longer can and has no adapter to ask."""
        kind = self._workloads()
        return await self._cluster.get(kind, key.namespace, names.workload_name(key.name)) if kind else None
