"""`GangActions`: does what was decided about the queue or gang scheduler of a job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from rljob_operator.cluster.api import FIELD_MANAGER, Cluster, Object
from rljob_operator.cluster.kinds import resource_kind_of
from rljob_operator.gangs.provider import GangProvider, Readiness
from rljob_operator.gangs.providers import GangProviders
from rljob_operator.manifests.context import JobContext, Manifest
from rljob_operator.states import Decision, QueueAction
from rljob_operator.states.situation.facts import PodFacts
from rljob_operator.vocabulary.key import Key


class OwnObjects(Protocol):
    """Makes and deletes children of one job, and touches nobody else's."""

    async def make(self, manifest: Manifest) -> Object:
        """The object as it is then, made if it was not there."""
        ...

    async def delete(self, child: Object) -> None:
        """This very object, if it is the job's."""
        ...


@dataclass(frozen=True)
class GangActions:
    """Applies, releases and deletes what the gang provider of one job needs in the cluster."""

    cluster: Cluster
    gangs: GangProviders
    children: OwnObjects

    async def act(self, context: JobContext, decision: Decision, readiness: Readiness) -> None:
        """Do what was decided about the queue."""
        gang, attempt = self.gangs.of(context), max(decision.status.attempt, 1)
        if decision.queue is QueueAction.LEAVE and not gang.is_queue:  # what it asked while it had another gang
            await self.leave_unplanned(Key(context.namespace, context.name), context.uid)
        if gang.is_queue or decision.queue is QueueAction.LEAVE:
            await self._act(gang, await self.gangs.objects(context, gang, attempt), context, decision, readiness)
        elif decision.creates_pods:
            await self._make(gang.objects(context, attempt))
        if decision.creates_pods and attempt > 1:
            await self._drop_older(context, gang, attempt)

    async def leave_unplanned(self, key: Key, uid: str) -> None:
        """The Workload goes of a job that queued while it could be planned, and no longer can."""
        unplanned = await self.gangs.unplanned(key, uid)
        if unplanned is not None:
            await self.children.delete(unplanned)

    async def _act(
        self, gang: GangProvider, objects: list[Object], context: JobContext, decision: Decision, readiness: Readiness
    ) -> None:
        if decision.queue is QueueAction.LEAVE:
            return await self._delete(objects)
        if decision.queue is QueueAction.HOLD:
            wanted = gang.objects(context, max(decision.status.attempt, 1))
            there = {item["metadata"]["name"] for item in objects}
            objects += await self._make(item for item in wanted if item["metadata"]["name"] not in there)
            for manifest in gang.renewed(objects, wanted):
                await self.cluster.apply(resource_kind_of(manifest), context.namespace, manifest)
        manager = gang.release_manager if decision.queue is QueueAction.RELEASE else None
        for status in _statuses(gang, objects, decision, readiness):
            await self.cluster.apply_status(
                resource_kind_of(status), context.namespace, status, manager=manager or FIELD_MANAGER
            )

    async def _drop_older(self, context: JobContext, gang: GangProvider, attempt: int) -> None:
        """A pod group of an attempt without pods would still ask its scheduler for room."""
        current = {item["metadata"]["name"] for item in gang.objects(context, attempt)}
        older = await self.gangs.objects(context, gang, attempt - 1)
        await self._delete(item for item in older if item["metadata"]["name"] not in current)

    async def _make(self, manifests: Iterable[Manifest]) -> list[Object]:
        return [await self.children.make(manifest) for manifest in manifests]

    async def _delete(self, objects: Iterable[Object]) -> None:
        for item in objects:
            await self.children.delete(item)


def readiness_of(decision: Decision, seen: Iterable[PodFacts]) -> Readiness:
    """What is reported to a queue about the attempt that was decided about, having `seen` these pods."""
    done = [pod.group for pod in seen if pod.is_done and pod.attempt == decision.status.attempt]
    return Readiness(
        pods_ready=decision.status.ready_time is not None,
        finished_pods={group: done.count(group) for group in set(done)},
    )


def _statuses(gang: GangProvider, objects: list[Object], decision: Decision, readiness: Readiness) -> list[Manifest]:
    if decision.queue is QueueAction.FINISH:
        return gang.finish(objects, f"the job has {decision.status.phase.lower()}")
    if decision.queue is QueueAction.RELEASE:
        return gang.release(objects)
    return gang.report(objects, readiness) if decision.queue is QueueAction.HOLD else []
