"""Speaks to the queue or gang scheduler of a job: what the gang adapters render is read and written here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from rljob_operator import names
from rljob_operator.bulk import for_each
from rljob_operator.children import Children
from rljob_operator.cluster.api import FIELD_MANAGER, Cluster, Object
from rljob_operator.cluster.kinds import Kind, kind_of
from rljob_operator.conditions import Reason
from rljob_operator.key import Key
from rljob_operator.manifests.context import JobContext, Manifest
from rljob_operator.manifests.gang import Gang, Readiness, Unserved
from rljob_operator.manifests.gang.none import Ungrouped
from rljob_operator.observe import is_child_of
from rljob_operator.states import Decision, QueueAction, Refusal, Situation

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

    async def act(self, context: JobContext, children: Children, decision: Decision, readiness: Readiness) -> None:
        """Do what was decided about the queue."""
        gang, attempt = self.of(context), max(decision.status.attempt, 1)
        objects = await self.objects(context, gang, attempt)
        if decision.queue is QueueAction.LEAVE:
            return await for_each(objects, children.delete)
        if decision.creates_pods and attempt > 1:
            await self._drop_older(context, gang, attempt, children)
        if decision.queue is QueueAction.HOLD:
            there = {each["metadata"]["name"] for each in objects}
            missing = (each for each in gang.objects(context, attempt) if each["metadata"]["name"] not in there)
            objects += [await children.make(manifest) for manifest in missing]
        manager = gang.release_manager if decision.queue is QueueAction.RELEASE else None
        for status in self._statuses(gang, objects, decision, readiness):
            await self._cluster.apply_status(
                kind_of(status), context.namespace, status, manager=manager or FIELD_MANAGER
            )

    async def leave_unplanned(self, key: Key, children: Children) -> None:
        """A job that queued while it could be planned, and no longer can, has no adapter to ask: its Workload goes."""
        kind = self._workloads()
        found = await self._cluster.get(kind, key.namespace, names.workload_name(key.name)) if kind else None
        if found is not None:
            await children.delete(found)

    async def _drop_older(self, context: JobContext, gang: Gang, attempt: int, children: Children) -> None:
        """A pod group of an attempt without pods would still ask its scheduler for room."""
        current = {each["metadata"]["name"] for each in gang.objects(context, attempt)}
        older = await self.objects(context, gang, attempt - 1)
        await for_each((each for each in older if each["metadata"]["name"] not in current), children.delete)

    def _statuses(self, gang: Gang, objects: list[Object], decision: Decision, readiness: Readiness) -> list[Manifest]:
        if decision.queue is QueueAction.FINISH:
            return gang.finish(objects, f"the job has {decision.status.phase.lower()}")
        if decision.queue is QueueAction.RELEASE:
            return gang.release(objects)
        return gang.report(objects, readiness) if decision.queue is QueueAction.HOLD else []
