"""`JobInspector`: reads everything that a decision about a job follows from."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from rljob_api.v1alpha1.status import ENDED_PHASES
from rljob_api.vocabulary import keys
from rljob_operator import names
from rljob_operator.cluster.api import Cluster, Object, list_pages
from rljob_operator.cluster.child_cache import PodCache
from rljob_operator.cluster.kind_watch import KindWatch
from rljob_operator.cluster.kinds import CONFIG_MAP, DEPLOYMENT, POD, RAY_SERVICE
from rljob_operator.gangs.providers import GangProviders
from rljob_operator.inspection.acceptance import Accepted, accept, lenient_spec, plan_from_config_map
from rljob_operator.inspection.job_store import JobMemory, ObservedJob
from rljob_operator.manifests.ceilings import QueueCeilings
from rljob_operator.manifests.context import JobContext, WrittenPlan
from rljob_operator.manifests.metadata import is_child_of, is_of_predecessor
from rljob_operator.manifests.violations import job_violations
from rljob_operator.observing.agents import agents_facts
from rljob_operator.observing.pods import facts_of_metadata, pod_facts
from rljob_operator.observing.ray_services import ray_service_facts
from rljob_operator.rules import Rules
from rljob_operator.states import Refusal, Situation
from rljob_operator.states.failures.suspects import avoided
from rljob_operator.states.situation.conditions import Reason, condition
from rljob_operator.states.situation.facts import AgentsFacts, PodFacts, ProgressAnswer, UnreachableLead
from rljob_operator.states.situation.situation import Obstacle, PlanName
from rljob_operator.vocabulary.key import Key

_MAX_ASKED = 16
"""A gang whose pods all vanish at once, a thousand perhaps, was deleted, and not relabelled pod by pod."""


class ProgressSource(Protocol):
    """Who asks lead pods how far they are."""

    def follow(self, key: Key, address: str) -> ProgressAnswer | UnreachableLead | None:
        """Ask there from now on; the answer that came since this was last called, if one did."""
        ...

    def leave(self, key: Key) -> None:
        """Ask no more."""
        ...


@dataclass(frozen=True)
class JobInspector:
    """One for all jobs."""

    cluster: Cluster
    pods: PodCache
    progress: ProgressSource
    rules: Rules
    gangs: GangProviders
    ray_services: KindWatch
    clock: Callable[[], float]

    async def inspect(
        self, job: ObservedJob, memory: JobMemory, *, are_guests_paused: bool = False
    ) -> tuple[Situation, JobContext | None]:
        """The situation, and what children are rendered from, which a job that is refused does not have."""
        running = await self._running_plan(job, memory)
        accepted = self._accept(job, memory, running)
        context = self._context(job, accepted, running)
        seen = self.pods.of(job.key)
        rays = await self._ray_services(job, seen)
        situation = replace(
            _situation(job, accepted, context, self.clock()).with_pods((*memory.read_pods(seen, job.uid), *rays)),
            obstacle=memory.obstacle,
            guests_refused=memory.guests_refused,
            are_guests_paused=are_guests_paused,
            planned_steps=None if running is None else running.plan.spec.stop.steps,
            is_predecessor_ending=any(is_of_predecessor(pod, job.key.name, job.uid) for pod in seen),
        )
        is_short = situation.missing and job.status.pods_created_time and job.is_alive
        if is_short or situation.missing_services:
            # A cache may be behind; a pod is gone when the API server says so.
            situation = await self.with_all_pods(job, situation, memory)
            gone = (*(situation.missing if is_short else ()), *situation.missing_services)
            situation = replace(situation, departed=self._departed(job, gone))
        else:
            situation = await self._with_hidden(job, situation, memory)
        situation = self._without_kube_ray(context, situation)
        situation = await self.gangs.look(job.key, job.uid, context, situation)
        agents = await self._agents(job, context)
        return replace(situation, agents=agents, progress=self._progress(job, situation)), context

    def without_reports(self, job: ObservedJob, obstacle: Obstacle) -> Situation:
        """The situation as far as it is known without reading anything, or believing what pods say."""
        pods = [facts_of_metadata(pod) for pod in self.pods.of(job.key) if is_child_of(pod, job.uid)]
        known = Situation(
            name=job.key.name,
            spec=lenient_spec(job.body["spec"]),
            status=job.status,
            now=self.clock(),
            generation=job.generation,
            obstacle=obstacle,
        )
        return known.with_pods(pods)

    async def with_all_pods(self, job: ObservedJob, situation: Situation, memory: JobMemory) -> Situation:
        """The situation with the job's pods as the API server knows them now, whether or not their labels say so."""
        rays = (service_pod for service_pod in situation.service_pods if service_pod.kind == "RayService")
        listed = list_pages(self.cluster, POD, job.key.namespace, labels=f"{keys.LABEL_JOB}={job.key.name}")
        pods = [pod_facts(pod) async for page in listed for pod in page.items if is_child_of(pod, job.uid)]
        situation = situation.with_pods((*pods, *rays))
        memory.out_of_sight |= set(self._unexplained(job, (*situation.missing_services, *situation.missing)))
        return await self._with_hidden(job, situation, memory)

    async def _ray_services(self, job: ObservedJob, seen: Iterable[Object]) -> list[PodFacts]:
        """What KubeRay serves for the job, with what it has made of that."""
        kind = self.ray_services.kind
        if kind is None or not job.body["spec"].get("services"):
            return []
        result = self.ray_services.of(job.key)
        if result is None:
            labels = f"{keys.LABEL_JOB}={job.key.name}"
            listed = list_pages(self.cluster, kind, job.key.namespace, labels=labels)
            result = [item async for page in listed for item in page.items]
        made = [pod for pod in seen if not is_child_of(pod, job.uid)]
        own = (item for item in result if is_child_of(item, job.uid))
        return [ray_service_facts(item, [pod for pod in made if _serve_the_same(item, pod)]) for item in own]

    async def _agents(self, job: ObservedJob, context: JobContext | None) -> AgentsFacts:
        """What there is of pods of agents, which are no children of the job by label."""
        if context is None or context.spec.agent_group is None or job.status.phase in ENDED_PHASES:
            return AgentsFacts()
        there = await self.cluster.get(DEPLOYMENT, job.key.namespace, names.agents_name(job.key.name))
        if there is None or not is_child_of(there, job.uid):
            return AgentsFacts()
        listed = list_pages(self.cluster, POD, job.key.namespace, labels=f"{keys.LABEL_AGENTS}={job.key.name}")
        return agents_facts(there, [pod async for page in listed for pod in page.items], self.clock())

    def _without_kube_ray(self, context: JobContext | None, situation: Situation) -> Situation:
        """Models that are to be RayServices are refused where there is nobody to make pods of those."""
        wants = context is not None and context.pods.ray_services and context.spec.services
        if not wants or situation.refusal is not None or self.ray_services.kind is not None:
            return situation
        message = (
            f"spec.services: models are {RAY_SERVICE.kind}s here (pods.rayServices), and the cluster does not serve "
            f"{RAY_SERVICE.api_version}; install KubeRay, or set integrations.kuberay: false in the chart's values"
        )
        return replace(situation, refusal=Refusal(Reason.KUBERAY_MISSING, message))

    def _unexplained(self, job: ObservedJob, names: Iterable[str]) -> list[str]:
        """Missing pods that may still run, as many as can be looked up one by one."""
        seen = ((name, self.pods.departed(job.key, name)) for name in names)
        return [name for name, pod in seen if pod is None or not _explains_itself(pod_facts(pod))][:_MAX_ASKED]

    async def _with_hidden(self, job: ObservedJob, situation: Situation, memory: JobMemory) -> Situation:
        """The situation with the pods that are there though no label leads to them any more."""
        result = {name: await self.cluster.get(POD, job.key.namespace, name) for name in sorted(memory.out_of_sight)}
        seen = (*situation.pods, *situation.service_pods, *situation.guest_pods)
        known = {pod.name for pod in seen}
        hidden = [
            replace(pod_facts(pod), is_out_of_sight=True)
            for name, pod in result.items()
            if pod is not None and name not in known and is_child_of(pod, job.uid)
        ]
        memory.out_of_sight = {pod.name for pod in hidden}
        return situation.with_pods((*seen, *hidden))

    def _departed(self, job: ObservedJob, names: Iterable[str]) -> Mapping[str, PodFacts]:
        seen = ((name, self.pods.departed(job.key, name)) for name in names)
        return {name: pod_facts(pod) for name, pod in seen if pod is not None and is_child_of(pod, job.uid)}

    def _accept(self, job: ObservedJob, memory: JobMemory, running: WrittenPlan | None) -> Accepted | Refusal:
        # labels name the queue, and a change of them is not a new generation
        labels = tuple(sorted((job.body["metadata"].get("labels") or {}).items()))
        known = job.generation, job.status.plan_config_map or "", labels
        if memory.accepted is None or memory.accepted[0] != known:
            memory.accepted = known, accept(job.body, running.plan if running else None, self.rules.profiles)
        accepted = memory.accepted[1]
        # ceilings that came down leave an attempt that runs alone, and refuse the next
        if isinstance(accepted, Refusal) or job.is_alive:
            return accepted
        if memory.ceilings is None or memory.ceilings[0] is not accepted:
            memory.ceilings = accepted, self._beyond_ceilings(job, accepted)
        return memory.ceilings[1] or accepted

    def _beyond_ceilings(self, job: ObservedJob, accepted: Accepted) -> Refusal | None:
        context = self._context(job, accepted, None)
        result = [] if context is None else job_violations(self.rules.ceilings, context)
        message = f"beyond what the administrators of this cluster allow (settings.ceilings): {'; '.join(result)}"
        return Refusal(Reason.BEYOND_CEILINGS, message) if result else None

    async def _running_plan(self, job: ObservedJob, memory: JobMemory) -> WrittenPlan | None:
        name = job.status.plan_config_map
        if name is None:
            return None
        if name not in memory.plans:
            config_map = await self.cluster.get(CONFIG_MAP, job.key.namespace, name)
            result = (
                plan_from_config_map(config_map)
                if config_map is not None and is_child_of(config_map, job.uid)
                else None
            )
            if result is None:
                return None
            memory.plans = {name: result}
        return memory.plans[name]

    def _context(
        self, job: ObservedJob, accepted: Accepted | Refusal, running: WrittenPlan | None
    ) -> JobContext | None:
        """What children of the attempt that runs, or of the next, are rendered from."""
        if isinstance(accepted, Refusal):
            return None
        return JobContext(
            job=accepted.job,
            uid=job.uid,
            namespace=job.key.namespace,
            written=running if job.is_alive and running is not None else accepted.written,
            profiles=self.rules.profiles,
            pods=self.rules.pods,
            queues=QueueCeilings() if _runs_outside_queues(job) else self.rules.ceilings.queues,
            avoided_nodes=avoided(job.status.suspect_nodes, self.clock()),
        )

    def _progress(self, job: ObservedJob, situation: Situation) -> ProgressAnswer | UnreachableLead | None:
        """What the lead pod has answered since the last look; None where nothing came, or nobody is to be asked."""
        lead = names.pod_name(situation.name, situation.lead_group, 0, situation.status.attempt)
        pod = next((pod for pod in situation.pods if pod.name == lead), None)
        if not job.is_alive or pod is None or not pod.address or pod.ended is not None or not pod.is_ready:
            self.progress.leave(job.key)
            return None
        host = f"[{pod.address}]" if ":" in pod.address else pod.address
        return self.progress.follow(job.key, f"{host}:{keys.PORT_WORKER_METRICS}")


def _serve_the_same(ray_service: Object, pod: Object) -> bool:
    """Whether a pod is of the service that a RayService is of."""
    labels = pod["metadata"].get("labels") or {}
    return bool(labels.get(keys.LABEL_SERVICE) == ray_service["metadata"]["labels"].get(keys.LABEL_SERVICE))


def _explains_itself(last: PodFacts) -> bool:
    """Whether what was last seen of a pod that is out of sight explains that: it was being deleted, or had ended."""
    return last.ends_at is not None or last.is_over


def _situation(job: ObservedJob, accepted: Accepted | Refusal, context: JobContext | None, now: float) -> Situation:
    situation = Situation(
        name=job.key.name,
        spec=lenient_spec(job.body["spec"]) if isinstance(accepted, Refusal) else accepted.job.spec,
        status=job.status,
        now=now,
        generation=job.generation,
        chance=zlib.crc32(f"{job.uid}/{job.status.attempt}".encode()) / 2**32,
    )
    if isinstance(accepted, Refusal):
        return replace(situation, refusal=accepted)
    assert context is not None, "an accepted job has a context"
    plan_hash = accepted.written.hash
    return replace(
        situation,
        lead_group=context.plan.lead_group,
        plan=PlanName(plan_hash, names.plan_config_map_name(job.key.name, plan_hash)),
        spec_changes=accepted.changes,
    )


def _runs_outside_queues(job: ObservedJob) -> bool:
    """A queue that is given to all jobs is for the next attempt of one that runs in none."""
    quota = condition(job.status.conditions, "QuotaReserved")
    return job.is_alive and quota is not None and quota.reason == Reason.NO_QUEUE
