"""`Gangs`: reads what the queue or gang scheduler of a job says of it."""

from __future__ import annotations

from dataclasses import replace

from rljob_api.v1alpha1.status import LIVING_PHASES
from rljob_operator import names
from rljob_operator.cluster.api import Cluster, Object
from rljob_operator.cluster.kind_watch import KindWatch
from rljob_operator.cluster.kinds import WORKLOAD_KUEUE, WORKLOAD_KUEUE_V1BETA2, resource_kind_of
from rljob_operator.cluster.reflector import drop_bookkeeping
from rljob_operator.gangs.kueue.gang import Kueue
from rljob_operator.gangs.provider import GangProvider, Ungrouped
from rljob_operator.gangs.schedulers import Recent, Schedulers
from rljob_operator.gangs.selection import Unserved
from rljob_operator.manifests.context import JobContext
from rljob_operator.manifests.metadata import is_child_of
from rljob_operator.states import Refusal, Situation
from rljob_operator.states.situation.conditions import Reason
from rljob_operator.vocabulary.key import Key

WORKLOADS = (WORKLOAD_KUEUE_V1BETA2, WORKLOAD_KUEUE)
"""Kueue's, in the versions that are watched, the newest first."""


class GangProviders:
    """One for all jobs."""

    def __init__(self, cluster: Cluster, recent: Recent, schedulers: Schedulers, workloads: KindWatch) -> None:
        self._cluster = cluster
        self._recent = recent
        self._schedulers = schedulers
        self._workloads = workloads

    def of(self, context: JobContext) -> GangProvider:
        """The gang of this job; where the cluster lacks it, there is nothing to write to, but to leave its queue."""
        try:
            return self._schedulers.choose(context)
        except Unserved:
            return Ungrouped()

    async def look(self, key: Key, uid: str, context: JobContext | None, situation: Situation) -> Situation:
        """The situation with what the queue says, also of a job that can no longer be planned."""
        if context is None:
            return await self._look_at_unplanned(key, uid, situation)
        await self._schedulers.learn(context)
        try:
            gang = self._schedulers.choose(context)
        except Unserved as error:
            refusal = situation.refusal or Refusal(Reason.SCHEDULER_MISSING, str(error))
            return await self._look_at_unplanned(key, uid, replace(situation, refusal=refusal))
        if not gang.is_queue:
            return replace(situation, waits_for_all=gang.waits_for_all(()))
        attempt = max(situation.status.attempt, 1)
        objects = await self.objects(context, gang, attempt)
        if not objects and situation.status.phase in LIVING_PHASES:
            # A watch may be behind; the place of a gang that runs is gone when the API server says so.
            objects = await self.objects(context, gang, attempt, is_watch_enough=False)
        return _seen(situation, gang, objects)

    async def objects(
        self, context: JobContext, gang: GangProvider, attempt: int, is_watch_enough: bool = True
    ) -> list[Object]:
        """The live objects of the gang; one of somebody else that bears the name is none."""
        key = Key(context.namespace, context.name)
        watched = self._of_watch(key) if is_watch_enough and gang.is_queue else None
        if watched is None:
            result = [
                await self._cluster.get(resource_kind_of(item), context.namespace, item["metadata"]["name"])
                for item in gang.objects(context, attempt)
            ]
        else:
            result = [*watched]
        objects = [item for item in result if item is not None and is_child_of(item, context.uid)]
        return objects + [reference for reference in await self._references(gang, objects) if reference is not None]

    async def unplanned(self, key: Key, uid: str) -> Object | None:
        """What a job asked of its queue while it could be planned, where it no longer can and has no gang to ask."""
        kind, watched = self._workloads.kind, self._of_watch(key)
        if kind is None:
            return None
        if watched is None:
            result = await self._cluster.get(kind, key.namespace, names.workload_name(key.name))
            watched = [] if result is None else [result]
        return next((item for item in watched if is_child_of(item, uid)), None)

    def _of_watch(self, key: Key) -> list[Object] | None:
        """With their type, which items of a list need not say."""
        kind, watched = self._workloads.kind, self._workloads.of(key)
        if kind is None or watched is None:
            return None
        return [{"apiVersion": kind.api_version, "kind": kind.kind, **item} for item in watched]

    async def _look_at_unplanned(self, key: Key, uid: str, situation: Situation) -> Situation:
        workload = await self.unplanned(key, uid)
        return situation if workload is None else _seen(situation, Kueue(workload["apiVersion"]), [workload])

    async def _references(self, gang: GangProvider, objects: list[Object]) -> list[Object | None]:
        return [
            await self._recent.get(
                resource_kind_of({"apiVersion": reference.api_version, "kind": reference.kind}), reference.name
            )
            for reference in gang.references(objects)
        ]


def _seen(situation: Situation, gang: GangProvider, objects: list[Object]) -> Situation:
    return replace(
        situation, admission=gang.admission(objects), has_queue=True, waits_for_all=gang.waits_for_all(objects)
    )


def drop_pod_sets(item: Object) -> None:
    """What the queue says is read from here; the pods that were asked for are most of a Workload, and ours."""
    drop_bookkeeping(item)
    if "spec" in item:  # a bookmark has none
        item["spec"].pop("podSets", None)
