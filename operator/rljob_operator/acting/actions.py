"""Does what was decided about one job; every step may be repeated, and each finds what the one before has done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from rljob_api.vocabulary import keys
from rljob_operator import names
from rljob_operator.acting.children import Children, for_each
from rljob_operator.acting.leftovers import drop_leftovers
from rljob_operator.cluster.api import Cluster
from rljob_operator.cluster.child_cache import PodCache
from rljob_operator.cluster.kinds import DEPLOYMENT, POD, RLJOB, SECRET
from rljob_operator.gangs.actions import GangActions, readiness_of
from rljob_operator.gangs.providers import GangProviders
from rljob_operator.manifests.agents import POD_SET, agents_deployment, is_made_as
from rljob_operator.manifests.children import static_children
from rljob_operator.manifests.configmaps import rank_tables
from rljob_operator.manifests.context import JobContext, Manifest, Placement
from rljob_operator.manifests.metadata import is_child_of
from rljob_operator.manifests.pod.pods import ANYWHERE, guest_pod, images_of_attempt, pods
from rljob_operator.manifests.secrets import tls_secret, token_secret
from rljob_operator.manifests.serving.pod import service_pods
from rljob_operator.manifests.serving.ray_service import ray_services
from rljob_operator.states import Decision, QueueAction
from rljob_operator.states.failures.suspects import avoided
from rljob_operator.states.situation.facts import PodFacts
from rljob_operator.states.situation.situation import GIVING_BACK
from rljob_operator.vocabulary.key import Key


class Actions:
    """What may be done for one job."""

    def __init__(
        self,
        cluster: Cluster,
        children: Children,
        pods: PodCache,
        gangs: GangProviders,
        key: Key,
        uid: str,
        new_token: Callable[[], str],
        clock: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._children = children
        self._pods = pods
        self._gangs = gangs
        self._queue = GangActions(cluster, gangs, children)
        self._key = key
        self._uid = uid
        self._new_token = new_token
        self._clock = clock

    async def run(
        self, decision: Decision, context: JobContext | None, seen: Sequence[PodFacts], *, heals: bool
    ) -> list[str]:
        """Do it, having `seen` these pods; names of children that were healed.  Raises NotOurs and ClusterError."""
        await self._children.delete_pods(decision.deletions)
        healed: list[str] = []
        if context is not None:
            if decision.queue in GIVING_BACK:
                await self._drop_agents(context)
            await self._queue.act(context, decision, readiness_of(decision, seen))
            if decision.creates_pods or decision.starts_services:
                await self._create(decision, context)
            elif decision.keeps_children and heals:
                healed = await self._heal(decision, context)
        elif decision.queue in (QueueAction.LEAVE, QueueAction.FINISH):
            await self._queue.leave_unplanned(self._key, self._uid)
        if decision.deletes_job:
            await self._children.delete_job(RLJOB)
        return healed

    async def _create(self, decision: Decision, context: JobContext) -> None:
        """First all that pods need, then pods; if any is refused, no more are made."""
        attempt = decision.status.attempt
        await drop_leftovers(self._cluster, self._children, context, attempt)
        for child in static_children(context):
            await self._children.make(child)
        await self._children.make_once(token_secret(context, self._new_token()))
        if decision.creates_pods:
            for child in rank_tables(context, attempt):
                await self._children.make_once(child)
            if context.spec.data_buffer.tls:
                await self._issue_certificates(context, attempt)
        there = {pod["metadata"]["name"] for pod in self._pods.of(self._key) if is_child_of(pod, self._uid)}
        missing = [item for item in await self._rendered(context, decision) if item["metadata"]["name"] not in there]
        # What refuses one pod of a group, a LimitRange or a webhook, refuses most: then hardly any others were made.
        firsts = {item["metadata"]["labels"].get(keys.LABEL_GROUP): item for item in reversed(missing)}
        await for_each(reversed(firsts.values()), self._create_one, max_in_flight=1)
        known = {item["metadata"]["name"] for item in firsts.values()}
        await for_each((item for item in missing if item["metadata"]["name"] not in known), self._create_one)
        if decision.creates_pods:
            await self._keep_agents(decision, context)

    async def start_guests(self, decision: Decision, context: JobContext) -> None:
        """Make pods of the elastic group, whose children the gang of their attempt has already."""
        nodes = avoided(decision.status.suspect_nodes, self._clock())  # with what this very look has seen
        attempt = decision.status.attempt
        images = images_of_attempt(self._pods.of(self._key), attempt)
        context = replace(context, avoided_nodes=nodes, attempt_images=images)
        gang = self._gangs.of(context)
        made = (guest_pod(context, start.index, attempt, start.start) for start in decision.starts_guests)
        await for_each((gang.shape_guest(context, item) for item in made), self._create_one)

    async def _issue_certificates(self, context: JobContext, attempt: int) -> None:
        if await self._children.existing(SECRET, names.tls_secret_name(context.name, attempt)) is None:
            now = datetime.fromtimestamp(self._clock(), UTC)
            await self._children.make_once(tls_secret(context, attempt, now))

    async def _rendered(self, context: JobContext, decision: Decision) -> Iterable[Manifest]:
        """Pods of services first, or what KubeRay makes those of."""
        gang, attempt = self._gangs.of(context), decision.status.attempt
        placements = await self._placements(context, attempt)
        starts = {
            service.name: service.start
            for service in decision.status.services
            if service.name in decision.starts_services
        }
        served = ray_services if context.pods.ray_services else service_pods
        services = served(context, starts, placements=placements)
        gangs = pods(context, attempt, placements=placements) if decision.creates_pods else []
        return (*services, *(gang.shape(context, pod) for pod in gangs))

    async def _placements(self, context: JobContext, attempt: int) -> Mapping[str, Placement]:
        """Where a queue wants pods."""
        gang = self._gangs.of(context)
        objects = await self._gangs.objects(context, gang, attempt) if gang.is_queue else []
        return gang.admission(objects).placements

    async def _keep_agents(self, decision: Decision, context: JobContext) -> list[str]:
        """Have pods of agents of the attempt made; the name of what was not there, or of another attempt. Raises
        NotOurs."""
        group, attempt = context.spec.agent_group, decision.status.attempt
        if group is None:
            return []
        placements = await self._placements(context, attempt)
        wanted = agents_deployment(context, group, attempt, placements.get(POD_SET, ANYWHERE))
        there = await self._children.existing(DEPLOYMENT, wanted["metadata"]["name"])
        if there is not None and is_made_as(there, wanted):
            return []
        if there is None:
            await self._children.make_once(wanted)
        else:
            await self._cluster.apply(DEPLOYMENT, context.namespace, wanted)
        return [f"{DEPLOYMENT.kind} {wanted['metadata']['name']}"]

    async def _drop_agents(self, context: JobContext) -> None:
        """They go with the job's place."""
        if context.spec.agent_group is None:
            return
        there = await self._cluster.get(DEPLOYMENT, context.namespace, names.agents_name(context.name))
        if there is not None:
            await self._children.delete_of(DEPLOYMENT, there)

    async def _create_one(self, manifest: Manifest) -> None:
        if manifest["kind"] == POD.kind:
            self._pods.note(await self._children.make_pod(manifest))
        else:
            await self._children.make_once(manifest)

    async def _heal(self, decision: Decision, context: JobContext) -> list[str]:
        children = static_children(context)
        healed = [
            f"{child['kind']} {child['metadata']['name']}" for child in children if await self._children.heal(child)
        ]
        return healed + (await self._keep_agents(decision, context) if decision.status.pods_created_time else [])
