"""`Reconciler`: surveys one job, decides, writes its status, reports, and acts, in this order."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from rljob_api.v1alpha1.status import ENDED_PHASES, LIVING_PHASES, RLJobStatus
from rljob_operator import names
from rljob_operator.acting.actions import Actions
from rljob_operator.acting.children import Children, NotOurs
from rljob_operator.acting.leftovers import hastened
from rljob_operator.cluster.api import Cluster
from rljob_operator.cluster.child_cache import PodCache
from rljob_operator.cluster.errors import ApiError, Forbidden, NotFound, QuotaExceeded, Rejected, UpdateConflict
from rljob_operator.cluster.kind_watch import KindWatch
from rljob_operator.gangs.providers import GangProviders
from rljob_operator.inspection.inspector import JobInspector, ProgressSource
from rljob_operator.inspection.job_store import JobMemory, JobStore, ObservedJob
from rljob_operator.inspection.prerequisites import unmet_prerequisite
from rljob_operator.manifests.context import JobContext
from rljob_operator.observing.values import clean
from rljob_operator.reporting.event_writer import EventWriter
from rljob_operator.reporting.events import Event, EventReason, action_events, status_events
from rljob_operator.reporting.job_metrics import JobMetrics, report_status
from rljob_operator.rules import Rules
from rljob_operator.states import Decision, Situation, decide
from rljob_operator.states.by_spec import decide_by_spec
from rljob_operator.states.report import obstructed
from rljob_operator.states.situation.conditions import MAX_MESSAGE_LENGTH, Reason
from rljob_operator.states.situation.facts import PodFacts
from rljob_operator.states.situation.situation import Obstacle
from rljob_operator.vocabulary.backoff import Backoff
from rljob_operator.vocabulary.key import Key

logger = logging.getLogger(__name__)

_IDLE = Backoff(0.5, 60.0)
_GUESTS_QUIET_SECONDS = 15.0
"""How long no pod of an elastic group is tried after one was refused."""
_MOST_FAILED_LOOKS = 10
"""After this many failures in a row a job is decided about by its spec."""


class Reconciler:
    """One for all jobs."""

    def __init__(
        self,
        cluster: Cluster,
        jobs: JobStore,
        pods: PodCache,
        progress: ProgressSource,
        rules: Rules,
        metrics: JobMetrics,
        gangs: GangProviders,
        ray_services: KindWatch,
        event_writer: EventWriter,
        clock: Callable[[], float],
        new_token: Callable[[], str],
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """clock: Unix time, which may be put forward or back.   steady: seconds between two looks."""
        self._cluster = cluster
        self._jobs = jobs
        self._pods = pods
        self._rules = rules
        self._metrics = metrics
        self._gangs = gangs
        self._event_writer = event_writer
        self._progress = progress
        self._clock = clock
        self._steady = steady
        self._new_token = new_token
        self._inspector = JobInspector(cluster, pods, progress, rules, gangs, ray_services, clock)
        self._memories: dict[Key, JobMemory] = {}

    async def reconcile(self, key: Key) -> float | None:
        """Look at the job once; the seconds after which to look again, or None when only changes matter."""
        memory = self._memories.setdefault(key, JobMemory())
        if (left := memory.quiet_until - self._steady()) > 0:
            return left
        job = await self._jobs.read(key)
        if job is None or not job.is_to_be_reconciled:
            await self._hasten_deleted(key, job)
            self._leave(key, is_gone=job is None)
            return None
        try:
            await self._hasten_deleted(key, job)
            again = await self._look(job, memory)
        except UpdateConflict:  # a watch is late: what was looked at is no longer so
            raise
        except Exception as error:
            memory.num_failed += 1
            await self._own_up(key, memory, obstacle_of(error))
            raise
        memory.num_failed = 0
        return again

    async def _hasten_deleted(self, key: Key, job: ObservedJob | None) -> None:
        living = "" if job is None or job.is_being_deleted else job.uid
        children = Children(self._cluster, key.namespace, key.name, living)
        await children.delete_pods(hastened(self._pods.of(key), key.name, living))

    def _leave(self, key: Key, *, is_gone: bool) -> None:
        self._progress.leave(key)
        if is_gone:
            self._memories.pop(key, None)
            self._metrics.forget(key)

    async def _look(self, job: ObservedJob, memory: JobMemory) -> float | None:
        key = job.key
        are_paused = memory.guests_quiet_until > self._steady()
        situation, context = await self._inspector.inspect(job, memory, are_guests_paused=are_paused)
        decision = await self._decide(job, memory, situation, context)
        await self._write(job, decision.status)
        self._event_writer.tell(job.subject, action_events(decision))
        again = await self._act(job, memory, context, situation.pods, decision)
        again = self._paced(memory, again, is_news=decision.status != job.status)
        if decision.status.phase == "Starting" and again != 0.0:
            memory.quiet_until = self._steady() + self._rules.quiet_seconds
        if decision.status.phase in ENDED_PHASES and memory.obstacle is None:
            self._memories.pop(key, None)  # thousands of jobs that ended may stay, and are seldom looked at
        return again

    async def _decide(
        self, job: ObservedJob, memory: JobMemory, situation: Situation, context: JobContext | None
    ) -> Decision:
        """Before an attempt begins, what it needs is read, and that no pod of another is left."""
        decision = decide(situation)
        if context is None or decision.status.attempt <= situation.status.attempt:
            return decision
        refusal = await unmet_prerequisite(self._cluster, context)
        if situation.status.attempt:
            situation = await self._inspector.with_all_pods(job, situation, memory)
        return decision if refusal is None and not situation.pods else decide(replace(situation, refusal=refusal))

    async def _write(self, job: ObservedJob, status: RLJobStatus) -> None:
        report_status(
            self._metrics, job.key, job.status, status, job.body["metadata"]["creationTimestamp"], self._clock()
        )
        await self._jobs.write(job, status)
        self._event_writer.tell(job.subject, status_events(job.status, status))

    async def _own_up(self, key: Key, memory: JobMemory, obstacle: Obstacle) -> None:
        """The error of a look is written to the job's status, as far as that can be written; the queue tries again."""
        memory.obstacle = obstacle
        try:
            job = await self._jobs.read(key)
            if job is None or not job.is_to_be_reconciled:
                return
            if memory.num_failed < _MOST_FAILED_LOOKS:
                await self._write(job, obstructed(job.status, obstacle, self._clock()))
            else:
                await self._go_by_spec(job, obstacle)
        except ApiError as worse:
            logger.info("%s", worse)

    async def _go_by_spec(self, job: ObservedJob, obstacle: Obstacle) -> None:
        """No failing look keeps a job from its deadlines, or whoever wants it suspended from its accelerators."""
        decision = decide_by_spec(self._inspector.without_reports(job, obstacle))
        await self._write(job, decision.status)
        self._event_writer.tell(job.subject, action_events(decision))
        await self._actions(job).run(decision, None, (), heals=False)

    async def _act(
        self,
        job: ObservedJob,
        memory: JobMemory,
        context: JobContext | None,
        seen: tuple[PodFacts, ...],
        decision: Decision,
    ) -> float | None:
        actions = self._actions(job)
        if decision.creates_pods and context is not None:
            known = names.plan_config_map_name(job.key.name, context.plan_hash)
            memory.plans = {known: context.written}
        heals = self._is_healing_due(memory, decision)
        try:
            healed = await actions.run(decision, context, seen, heals=heals)
        except (NotOurs, Forbidden, NotFound, QuotaExceeded, Rejected) as error:
            memory.obstacle = obstacle_of(error)
            logger.warning("%s", error)
            return self._look_again(decision, after_obstacle=True)
        await self._start_guests(actions, memory, context, decision)
        if decision.keeps_children and not (heals or decision.creates_pods or decision.starts_services):
            return self._look_again(decision)  # what was refused may be refused still: it was not tried
        was_obstructed, memory.obstacle = memory.obstacle is not None, None
        if healed:
            self._event_writer.tell(job.subject, [Event(EventReason.CHILD_HEALED, ", ".join(healed))])
        return 0.0 if was_obstructed else self._look_again(decision)

    async def _start_guests(
        self, actions: Actions, memory: JobMemory, context: JobContext | None, decision: Decision
    ) -> None:
        """A refusal of one is no obstacle of the job: it is said, and tried again after a while."""
        if context is None or not decision.starts_guests:
            return
        memory.guests_refused = ""
        try:
            await actions.start_guests(decision, context)
        except (NotOurs, Forbidden, NotFound, QuotaExceeded, Rejected) as error:
            memory.guests_refused = clean(str(error), MAX_MESSAGE_LENGTH)
            memory.guests_quiet_until = self._steady() + max(self._rules.heal_interval_seconds, _GUESTS_QUIET_SECONDS)
            logger.warning("%s", error)

    def _actions(self, job: ObservedJob) -> Actions:
        children = Children(self._cluster, job.key.namespace, job.key.name, job.uid)
        return Actions(self._cluster, children, self._pods, self._gangs, job.key, job.uid, self._new_token, self._clock)

    def _paced(self, memory: JobMemory, again: float | None, *, is_news: bool) -> float | None:
        """A look that changed nothing and wants another at once gets it after a pause that grows."""
        if again != 0.0 or is_news:
            memory.num_idle = 0
            return again
        memory.num_idle += 1
        return _IDLE.seconds(memory.num_idle, chance=0.0)

    def _is_healing_due(self, memory: JobMemory, decision: Decision) -> bool:
        if not decision.keeps_children or self._steady() - memory.last_heal < self._rules.heal_interval_seconds:
            return False
        memory.last_heal = self._steady()
        return True

    def _look_again(self, decision: Decision, after_obstacle: bool = False) -> float | None:
        alive = decision.status.phase in LIVING_PHASES
        if after_obstacle:
            # An attempt that could not be made is given up at once; what else failed can wait.
            return 0.0 if decision.status.pods_created_time is None and alive else self._rules.heal_interval_seconds
        if alive:
            return decision.again_within(self._rules.look_again_seconds).look_again_seconds
        return decision.look_again_seconds


def obstacle_of(error: Exception) -> Obstacle:
    """What a look met, as a condition says it."""
    if isinstance(error, NotOurs):
        return Obstacle(Reason.PREDECESSOR_ENDING if error.is_predecessors else Reason.NAME_CONFLICT, str(error))
    if not isinstance(error, ApiError):
        return Obstacle(Reason.OPERATOR_ERROR, clean(f"{type(error).__name__}: {error}", 1024), is_refusal=False)
    refused = next((reason for kind, reason in _REASONS.items() if isinstance(error, kind)), None)
    if refused is None:
        return Obstacle(Reason.CLUSTER_FAILS, clean(str(error), MAX_MESSAGE_LENGTH), is_refusal=False)
    return Obstacle(refused, clean(str(error), MAX_MESSAGE_LENGTH))


_REASONS: Mapping[type[Exception], Reason] = {
    QuotaExceeded: Reason.QUOTA_EXCEEDED,
    Forbidden: Reason.FORBIDDEN,
    NotFound: Reason.KIND_MISSING,
    Rejected: Reason.REJECTED,
}
"""Answers that stay the same when asked again at once."""
