"""`Reconciler`: looks at one job, decides, tells, writes its status, and acts, in this order."""

from __future__ import annotations

import logging
import socket
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from rljob_api import keys
from rljob_api.plan import Plan
from rljob_api.profiles import AcceleratorProfile
from rljob_api.v1alpha1.status import RLJobStatus
from rljob_operator import names
from rljob_operator.acceptance import Accepted, accept, read_plan, spec_as_far_as_it_goes
from rljob_operator.actions import Actions, PodCache
from rljob_operator.bookkeeping import tell
from rljob_operator.children import Children, NotOurs
from rljob_operator.cluster.api import Cluster, Object
from rljob_operator.cluster.errors import ClusterError, Forbidden, QuotaExceeded, Rejected
from rljob_operator.cluster.kinds import CONFIG_MAP, EVENT, POD, RLJOB
from rljob_operator.conditions import Reason
from rljob_operator.events import Event, EventReason, Subject, between, manifest, of_deeds
from rljob_operator.gangs import Gangs
from rljob_operator.job_metrics import JobMetrics
from rljob_operator.key import Key
from rljob_operator.manifests.context import JobContext, PodSettings
from rljob_operator.observe import PodFacts, is_child_of, is_of_predecessor, pod_facts
from rljob_operator.progress import ProgressAnswer, Unreachable
from rljob_operator.recorded import read_status
from rljob_operator.states import Decision, Refusal, Situation, decide
from rljob_operator.states.situation import Obstacle, PlanName
from rljob_operator.surroundings import refusal_by_surroundings

logger = logging.getLogger(__name__)


class ProgressSource(Protocol):
    """What a reconcile needs of a ProgressReader."""

    async def read(self, address: str) -> ProgressAnswer | Unreachable: ...


@dataclass(frozen=True)
class Rules:
    """What an administrator decided."""

    profiles: Mapping[str, AcceleratorProfile]
    pods: PodSettings = PodSettings()
    progress_interval_seconds: float = 10.0
    unanswered_polls: int = 3
    """How often in a row the lead pod may not answer before that is said."""
    quiet_seconds: float = 1.0
    """How long after a look the next one waits while pods come up: their changes are many, and one look sees all."""
    heal_interval_seconds: float = 30.0
    """How often children other than pods are compared with what they should be."""


@dataclass
class Memory:
    """What is remembered of a job between two looks; all of it may be forgotten at any time."""

    plans: dict[str, Plan] = field(default_factory=dict)
    """By name of the ConfigMap, which is immutable."""
    accepted: tuple[tuple[int, str], Accepted | Refusal] | None = None
    """Of a generation of the spec beside a running plan."""
    facts: dict[str, tuple[str, PodFacts]] = field(default_factory=dict)
    """Pod uid → its version and what was read off it."""
    obstacle: Obstacle | None = None
    quiet_until: float = float("-inf")
    last_poll: float = float("-inf")
    num_unanswered: int = 0
    last_heal: float = float("-inf")


@dataclass(frozen=True)
class Job:
    """An RLJob as it was just read."""

    key: Key
    body: Object
    status: RLJobStatus

    @property
    def uid(self) -> str:
        return str(self.body["metadata"]["uid"])

    @property
    def version(self) -> str:
        return str(self.body["metadata"]["resourceVersion"])


class Reconciler:
    """One for all jobs."""

    def __init__(
        self,
        cluster: Cluster,
        pods: PodCache,
        progress: ProgressSource,
        rules: Rules,
        metrics: JobMetrics,
        gangs: Gangs,
        clock: Callable[[], float],
        new_token: Callable[[], str],
    ) -> None:
        self._cluster = cluster
        self._pods = pods
        self._progress = progress
        self._rules = rules
        self._metrics = metrics
        self._gangs = gangs
        self._clock = clock
        self._new_token = new_token
        self._memories: dict[Key, Memory] = {}

    async def reconcile(self, key: Key) -> float | None:
        """Look at the job once; the seconds after which to look again, or None when only changes matter."""
        memory = self._memories.setdefault(key, Memory())
        if (left := memory.quiet_until - self._clock()) > 0:
            return left
        body = await self._cluster.get(RLJOB, key.namespace, key.name)
        if body is None:
            self._memories.pop(key, None)
            self._metrics.forget(key)
            return None
        if not _is_to_be_reconciled(body):
            return None
        job = Job(key, body, read_status(body.get("status")))
        situation, context = await self._look(job, memory)
        decision, context = await self._decide(job, situation, context)
        await self._tell(job, [*between(job.status, decision.status), *of_deeds(decision)])
        await self._write(job, decision.status)
        again = await self._act(job, memory, context, situation.pods, decision)
        if decision.status.phase == "Starting" and again != 0.0:
            memory.quiet_until = self._clock() + self._rules.quiet_seconds
        return again

    async def _decide(
        self, job: Job, situation: Situation, context: JobContext | None
    ) -> tuple[Decision, JobContext | None]:
        """Before an attempt begins, what it needs is read, and that no pod of another is left."""
        decision = decide(situation)
        if context is None or decision.status.attempt <= situation.status.attempt:
            return decision, context
        refusal = await refusal_by_surroundings(self._cluster, context)
        pods = await self._list_pods(job) if situation.status.attempt else situation.pods
        if refusal is not None or pods:
            decision = decide(replace(situation, refusal=refusal, pods=pods))
        return decision, context

    async def _look(self, job: Job, memory: Memory) -> tuple[Situation, JobContext | None]:
        """Everything that a decision follows from, and what children are rendered from."""
        accepted = await self._accept(job, memory)
        context = self._context(job, accepted, await self._running_plan(job, memory))
        seen = self._pods.of(job.key)
        memory.facts = {pod["metadata"]["uid"]: _facts(memory, pod) for pod in seen if is_child_of(pod, job.uid)}
        pods = [facts for _, facts in memory.facts.values()]
        situation = _situation(job, accepted, context, tuple(pods), self._clock())
        situation = replace(
            situation,
            obstacle=memory.obstacle,
            is_predecessor_ending=any(is_of_predecessor(pod, job.key.name, job.uid) for pod in seen),
        )
        if situation.missing and job.status.pods_created_time and job.status.phase in ("Starting", "Running"):
            # A cache may be behind; a pod is gone when the API server says so.
            situation = replace(situation, pods=await self._list_pods(job))
        if context is not None:
            situation = await self._gangs.look(context, situation)
        return replace(situation, progress=await self._ask(situation, memory)), context

    async def _accept(self, job: Job, memory: Memory) -> Accepted | Refusal:
        running = await self._running_plan(job, memory)
        known = job.body["metadata"]["generation"], job.status.plan_config_map or ""
        if memory.accepted is None or memory.accepted[0] != known:
            memory.accepted = known, accept(job.body, running, self._rules.profiles)
        return memory.accepted[1]

    async def _running_plan(self, job: Job, memory: Memory) -> Plan | None:
        name = job.status.plan_config_map
        if name is None:
            return None
        if name not in memory.plans:
            found = read_plan(await self._cluster.get(CONFIG_MAP, job.key.namespace, name))
            if found is None:
                return None
            memory.plans = {name: found}
        return memory.plans[name]

    def _context(self, job: Job, accepted: Accepted | Refusal, running: Plan | None) -> JobContext | None:
        """What children of the attempt that runs, or of the next, are rendered from."""
        if isinstance(accepted, Refusal):
            return None
        is_alive = job.status.phase in ("Starting", "Running")
        return JobContext(
            job=accepted.job,
            uid=job.uid,
            namespace=job.key.namespace,
            plan=running if is_alive and running is not None else accepted.plan,
            profiles=self._rules.profiles,
            pods=self._rules.pods,
        )

    async def _list_pods(self, job: Job) -> tuple[PodFacts, ...]:
        """The job's pods as the API server knows them now."""
        found: list[Object] = []
        labels, page_of = f"{keys.LABEL_JOB}={job.key.name}", None
        while True:
            page = await self._cluster.list(POD, job.key.namespace, labels=labels, continue_=page_of)
            found += page.items
            page_of = page.continue_
            if page_of is None:
                return tuple(pod_facts(pod) for pod in found if is_child_of(pod, job.uid))

    async def _ask(self, situation: Situation, memory: Memory) -> ProgressAnswer | Unreachable | None:
        """The lead pod's answer; None when it is not time to ask, or there is nobody to ask."""
        if situation.status.phase not in ("Starting", "Running"):
            return None
        lead = names.pod_name(situation.name, situation.lead_group, 0, situation.status.attempt)
        pod = next((pod for pod in situation.pods if pod.name == lead), None)
        if pod is None or not pod.address or pod.ended is not None or not pod.is_ready:
            return None
        if situation.now - memory.last_poll < self._rules.progress_interval_seconds:
            return None
        memory.last_poll = situation.now
        host = f"[{pod.address}]" if ":" in pod.address else pod.address
        answer = await self._progress.read(f"{host}:{keys.PORT_WORKER_METRICS}")
        memory.num_unanswered = memory.num_unanswered + 1 if isinstance(answer, Unreachable) else 0
        # A worker that has just ended, or is about to listen, does not answer either.
        return None if 0 < memory.num_unanswered < self._rules.unanswered_polls else answer

    async def _write(self, job: Job, status: RLJobStatus) -> None:
        """Write the status, where it changed, of the very version that was looked at."""
        tell(self._metrics, job.key, job.status, status, job.body["metadata"]["creationTimestamp"], self._clock())
        # The API server takes null for a value of the wrong type: what is not known is left out, at any depth.
        body = status.model_dump(mode="json", by_alias=True, exclude_none=True)
        if body == job.body.get("status"):
            return
        metadata = {"name": job.key.name, "uid": job.uid, "resourceVersion": job.version}
        await self._cluster.apply_status(RLJOB, job.key.namespace, {"metadata": metadata, "status": body})

    async def _tell(self, job: Job, events: list[Event]) -> None:
        """Events help people; that one cannot be written is no reason to leave a job alone."""
        subject = Subject(job.key.namespace, job.key.name, job.uid, job.version)
        for event in events:
            logger.info("%s: %s", event.reason, event.note)
            try:
                body = manifest(event, subject, self._clock(), socket.gethostname())
                await self._cluster.create(EVENT, job.key.namespace, body)
            except ClusterError as error:
                logger.debug("no event: %s", error)

    async def _act(
        self, job: Job, memory: Memory, context: JobContext | None, seen: tuple[PodFacts, ...], decision: Decision
    ) -> float | None:
        children = Children(self._cluster, job.key.namespace, job.key.name, job.uid)
        actions = Actions(children, self._pods, self._gangs, job.key, job.uid, self._new_token)
        if decision.creates_pods and context is not None:
            known = names.plan_config_map_name(job.key.name, context.plan_hash)
            memory.plans = {known: context.plan}
        try:
            healed = await actions.run(decision, context, seen, heals=self._is_healing_due(memory, decision))
        except (NotOurs, Forbidden, QuotaExceeded, Rejected) as error:
            memory.obstacle = obstacle_of(error)
            logger.warning("%s", error)
            return self._look_again(decision, after_obstacle=True)
        memory.obstacle = None
        if healed:
            await self._tell(job, [Event(EventReason.CHILD_HEALED, ", ".join(healed))])
        return self._look_again(decision)

    def _is_healing_due(self, memory: Memory, decision: Decision) -> bool:
        if not decision.keeps_children or self._clock() - memory.last_heal < self._rules.heal_interval_seconds:
            return False
        memory.last_heal = self._clock()
        return True

    def _look_again(self, decision: Decision, after_obstacle: bool = False) -> float | None:
        alive = decision.status.phase in ("Starting", "Running")
        if after_obstacle:
            # An attempt that could not be made is given up at once; what else failed can wait.
            return 0.0 if decision.status.pods_created_time is None and alive else self._rules.heal_interval_seconds
        if alive:
            return decision.again_within(self._rules.progress_interval_seconds).look_again_seconds
        return decision.look_again_seconds


def obstacle_of(error: Exception) -> Obstacle:
    """The cluster's refusal as a condition says it."""
    if isinstance(error, NotOurs):
        reason = Reason.PREDECESSOR_ENDING if error.is_predecessors else Reason.NAME_CONFLICT
    else:
        reason = next(reason for kind, reason in _REASONS.items() if isinstance(error, kind))
    return Obstacle(reason, str(error))


_REASONS: Mapping[type[Exception], Reason] = {
    QuotaExceeded: Reason.QUOTA_EXCEEDED,
    Forbidden: Reason.FORBIDDEN,
    Rejected: Reason.REJECTED,
}


def _is_to_be_reconciled(body: Object) -> bool:
    """Not what is being deleted, which garbage collection ends, and not what others reconcile."""
    return (
        "deletionTimestamp" not in body["metadata"]
        and body["spec"].get("managedBy", keys.MANAGED_BY) == keys.MANAGED_BY
    )


def _facts(memory: Memory, pod: Object) -> tuple[str, PodFacts]:
    """Read off again only where the pod has changed: a job may have a thousand."""
    version, known = pod["metadata"]["resourceVersion"], memory.facts.get(pod["metadata"]["uid"])
    return known if known is not None and known[0] == version else (version, pod_facts(pod))


def _situation(
    job: Job, accepted: Accepted | Refusal, context: JobContext | None, pods: tuple[PodFacts, ...], now: float
) -> Situation:
    chance = zlib.crc32(f"{job.uid}/{job.status.attempt}".encode()) / 2**32
    generation = int(job.body["metadata"]["generation"])
    if isinstance(accepted, Refusal):
        spec = spec_as_far_as_it_goes(job.body["spec"])
        return Situation(job.key.name, spec, job.status, now, pods, generation, chance, refusal=accepted)
    assert context is not None, "an accepted job has a context"
    return Situation(
        name=job.key.name,
        spec=accepted.job.spec,
        status=job.status,
        now=now,
        pods=pods,
        generation=generation,
        chance=chance,
        lead_group=context.plan.lead_group,
        plan=PlanName(
            accepted.plan.hash(), names.plan_config_map_name(job.key.name, accepted.plan.hash())
        ),
        spec_changes=accepted.changes,
    )  # fmt: skip
