"""`Gangs`: reads what the queue or gang scheduler of a job says of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from rljob_operator import names
from rljob_operator.cluster.api import Cluster, Object
from rljob_operator.cluster.kinds import Kind, kind_of
from rljob_operator.manifests.context import JobContext
from rljob_operator.manifests.gang import Gang, Unserved
from rljob_operator.manifests.gang.kueue import Kueue
from rljob_operator.manifests.gang.none import Ungrouped
from rljob_operator.manifests.ownership import is_child_of
from rljob_operator.states import Refusal, Situation
from rljob_operator.states.conditions import Reason
from rljob_operator.surveying.job import Job
from rljob_operator.surveying.recent import Recent
from rljob_operator.vocabulary.key import Key

Select = Callable[[JobContext], Gang]
Learn = Callable[[JobContext], Awaitable[None]]
Watched = Callable[[Key], Sequence[Object] | None]


async def _nothing_to_learn(context: JobContext) -> None:
    pass


class Gangs:
    """One for all jobs; `select` chooses a job's adapter, once `learn` has asked the cluster what that depends on."""

    def __init__(
        self,
        cluster: Cluster,
        recent: Recent,
        select: Select,
        learn: Learn = _nothing_to_learn,
        workloads: Callable[[], Kind | None] = lambda: None,
        watched: Watched = lambda key: None,
    ) -> None:
        """`workloads`: Kueue's kind, where the cluster has it.  `watched`: the Workloads of a job as a watch told of
        them; None while there is no such watch, and the API server is asked."""
        self._cluster = cluster
        self._recent = recent
        self._select = select
        self._learn = learn
        self._workloads = workloads
        self._watched = watched

    def of(self, context: JobContext) -> Gang:
        """The adapter of this job; where the cluster lacks it, there is nothing to write to, but to leave its queue."""
        try:
            return self._select(context)
        except Unserved:
            return Ungrouped()

    async def look(self, job: Job, context: JobContext | None, situation: Situation) -> Situation:
        """The situation with what the queue says, also of a job that can no longer be planned."""
        if context is None:
            return await self._look_at_unplanned(job, situation)
        await self._learn(context)
        try:
            gang = self._select(context)
        except Unserved as error:
            refusal = Refusal(Reason.SCHEDULER_MISSING, str(error))
            return await self._look_at_unplanned(job, replace(situation, refusal=situation.refusal or refusal))
        if not gang.is_queue:
            return replace(situation, waits_for_all=gang.waits_for_all(()))
        objects = await self.objects(context, gang, max(situation.status.attempt, 1))
        if not objects and job.is_alive:
            # A watch may be behind; the place of a gang that runs is gone when the API server says so.
            objects = await self.objects(context, gang, max(situation.status.attempt, 1), is_watch_enough=False)
        return _seen(situation, gang, objects)

    async def objects(
        self, context: JobContext, gang: Gang, attempt: int, is_watch_enough: bool = True
    ) -> list[Object]:
        """The live objects of the gang; one of somebody else that bears the name is none."""
        key = Key(context.namespace, context.name)
        watched = self._of_watch(key) if is_watch_enough and gang.is_queue else None
        if watched is None:
            found = [
                await self._cluster.get(kind_of(each), context.namespace, each["metadata"]["name"])
                for each in gang.objects(context, attempt)
            ]
        else:
            found = [*watched]
        objects = [each for each in found if each is not None and is_child_of(each, context.uid)]
        return objects + [each for each in await self._references(gang, objects) if each is not None]

    async def unplanned(self, key: Key, uid: str) -> Object | None:
        """What a job asked of its queue while it could be planned, where it no longer can and has no adapter to ask."""
        kind, watched = self._workloads(), self._of_watch(key)
        if kind is None:
            return None
        if watched is None:
            found = await self._cluster.get(kind, key.namespace, names.workload_name(key.name))
            watched = [] if found is None else [found]
        return next((each for each in watched if is_child_of(each, uid)), None)

    def _of_watch(self, key: Key) -> list[Object] | None:
        """With their type, which items of a list need not say."""
        kind, watched = self._workloads(), self._watched(key)
        if kind is None or watched is None:
            return None
        return [{"apiVersion": kind.api_version, "kind": kind.kind, **each} for each in watched]

    async def _look_at_unplanned(self, job: Job, situation: Situation) -> Situation:
        workload, kind = await self.unplanned(job.key, job.uid), self._workloads()
        if workload is None or kind is None:
            return situation
        return _seen(situation, Kueue(kind.version), [workload])

    async def _references(self, gang: Gang, objects: list[Object]) -> list[Object | None]:
        return [
            await self._recent.get(kind_of({"apiVersion": each.api_version, "kind": each.kind}), each.name)
            for each in gang.references(objects)
        ]


def _seen(situation: Situation, gang: Gang, objects: list[Object]) -> Situation:
    return replace(
        situation, admission=gang.admission(objects), has_queue=True, waits_for_all=gang.waits_for_all(objects)
    )
