"""A small world for reconciles: a fake cluster, a scheduler and kubelets under control, and a clock that is set."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from typing import Any

import yaml
from prometheus_client import CollectorRegistry

from rljob_api.catalogue.profiles import DEFAULT
from rljob_api.tests.builders import SMALL
from rljob_api.v1alpha1.status import Condition, RLJobStatus
from rljob_operator.cluster.api import Object
from rljob_operator.cluster.child_cache import PodCache
from rljob_operator.cluster.errors import UpdateConflict
from rljob_operator.cluster.kind_watch import KindWatch
from rljob_operator.cluster.kinds import NAMESPACE, POD, RAY_SERVICE, RLJOB, WORKLOAD_KUEUE, ResourceKind
from rljob_operator.gangs.provider import GangProvider, Ungrouped
from rljob_operator.gangs.providers import GangProviders
from rljob_operator.gangs.schedulers import Recent, Schedulers
from rljob_operator.inspection.job_store import JobStore, read_status
from rljob_operator.manifests.context import JobContext
from rljob_operator.reconcile import Reconciler
from rljob_operator.reporting.event_writer import EventWriter
from rljob_operator.reporting.job_metrics import JobMetrics
from rljob_operator.rules import Rules
from rljob_operator.states.situation.conditions import condition
from rljob_operator.states.situation.facts import ProgressAnswer, UnreachableLead
from rljob_operator.tests.fake_cluster import FakeCluster, LiveCache
from rljob_operator.vocabulary.key import Key

KEY = Key("team", "small")
START = 1_800_000_000.0
SPEC: dict[str, Any] = yaml.safe_load(SMALL)["spec"]


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


class WallClock:
    """Runs with a steady one until it is put forward or back."""

    def __init__(self, steady: Clock) -> None:
        self.ahead = 0.0
        self._steady = steady

    def __call__(self) -> float:
        return self.now

    @property
    def now(self) -> float:
        return self._steady.now + self.ahead

    @now.setter
    def now(self, moment: float) -> None:
        """Time passes until then."""
        self._steady.now = moment - self.ahead


class Progress:
    """What the lead pod answers, asked at every look that comes an interval after the one before."""

    def __init__(self, clock: Clock, interval_seconds: float, unanswered_polls: int) -> None:
        self.answer: ProgressAnswer | UnreachableLead = UnreachableLead("nobody listens")
        self.asked: list[str] = []
        self.followed: set[Key] = set()
        self._clock = clock
        self._interval_seconds = interval_seconds
        self._unanswered_polls = unanswered_polls
        self.forget()

    def forget(self) -> None:
        """As an operator does that begins."""
        self._asked_at = float("-inf")
        self._num_unanswered = 0
        self.followed.clear()

    def follow(self, key: Key, address: str) -> ProgressAnswer | UnreachableLead | None:
        self.followed.add(key)
        if self._clock() - self._asked_at < self._interval_seconds:
            return None
        self._asked_at = self._clock()
        self.asked.append(address)
        self._num_unanswered = self._num_unanswered + 1 if isinstance(self.answer, UnreachableLead) else 0
        return None if 0 < self._num_unanswered < self._unanswered_polls else self.answer

    def leave(self, key: Key) -> None:
        self.followed.discard(key)


Select = Callable[[JobContext], GangProvider]


class Chosen(Schedulers):
    """Chooses the gang of a job without asking the cluster."""

    def __init__(self, select: Select) -> None:
        self._select = select

    async def learn(self, context: JobContext) -> None:
        pass

    def choose(self, context: JobContext) -> GangProvider:
        return self._select(context)


class World:
    """One cluster, one job `team/small`, and operators that come and go."""

    def __init__(
        self,
        select: Select = lambda context: Ungrouped(),
        progress_interval_seconds: float = 10.0,
        unanswered_polls: int = 3,
        **rules: Any,
    ) -> None:
        self.steady = Clock()
        self.clock = WallClock(self.steady)
        self.cluster = FakeCluster(self.clock)
        self.cache: PodCache = LiveCache(self.cluster)
        self.progress = Progress(self.steady, progress_interval_seconds, unanswered_polls)
        self.select = select
        self.rules = Rules(profiles=DEFAULT, heal_interval_seconds=0.0, quiet_seconds=0.0, **rules)
        self.late_since: int | None = None
        self.has_kube_ray = True
        self.metrics = JobMetrics(CollectorRegistry())
        self.cluster.put(NAMESPACE, None, {"metadata": {"name": KEY.namespace}})
        self.restart_operator()

    def restart_operator(self) -> None:
        """A fresh one, which remembers nothing."""
        self.progress.forget()
        tokens = (f"token-{number}" for number in itertools.count())
        self.event_writer = EventWriter(self.cluster, self.clock)
        self.operator = Reconciler(
            self.cluster,
            JobStore(self.cluster, self.heard, self.steady),
            self.cache,
            self.progress,
            self.rules,
            self.metrics,
            self.gangs(),
            WatchedRayServices(self),
            self.event_writer,
            self.clock,
            lambda: next(tokens),
            self.steady,
        )

    def gangs(self) -> GangProviders:
        """Who reads queues."""
        recent = Recent(self.cluster, self.steady)
        return GangProviders(self.cluster, recent, Chosen(self.select), WatchedWorkloads(self))

    def watched(self, key: Key) -> list[Object]:
        """Workloads as a watch that is never late reports them."""
        result = self.cluster.all(WORKLOAD_KUEUE, key.namespace, f"rljob.dev/job={key.name}")
        return [{name: item[name] for name in ("metadata", "spec", "status") if name in item} for item in result]

    def heard(self, key: Key) -> int | None:
        """What a watch reported of the job; once it is late, nothing newer than `late_since`."""
        job = self.cluster.peek(RLJOB, key.namespace, key.name)
        if job is None:
            return None
        version = int(job["metadata"]["resourceVersion"])
        return version if self.late_since is None else min(version, self.late_since)

    def submit(self, **spec: Any) -> None:
        """`kubectl apply` of the small job with top-level fields of its spec replaced."""
        body = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": KEY.name}}
        self.cluster.put(RLJOB, KEY.namespace, {**body, "spec": {**SPEC, **spec}})

    def edit(self, **spec: Any) -> None:
        """`kubectl edit` of top-level fields of the spec."""
        self.cluster.edit(RLJOB, KEY.namespace, KEY.name, spec={**self.job["spec"], **spec})

    def reconcile(self) -> float | None:
        """One look, or the try of one, which the queue makes again."""
        try:
            return asyncio.run(self._look())
        except UpdateConflict:
            assert self.late_since is not None, "only a late watch shows what is no longer so"
            return 0.0

    async def _look(self) -> float | None:
        try:
            return await self.operator.reconcile(KEY)
        finally:
            await self.event_writer.flush()

    def settle(self, limit: int = 20) -> None:
        """Look until nothing changes any more, without time passing."""
        for _ in range(limit):
            before = self.cluster.version
            again = self.reconcile()
            if self.cluster.version == before and again != 0.0:
                return
        raise AssertionError(f"no rest after {limit} looks; {self.status}")

    def wait(self, seconds: float) -> None:
        """Time passes, kubelets let go of deleted pods, and the operator looks."""
        self.clock.now += seconds
        self.cluster.end_pods()
        self.settle()

    def run_pods(self, **status: Any) -> None:
        """Scheduler and kubelets do their work: every pod that nobody deletes is ready."""
        for pod in self.pods:
            if "deletionTimestamp" not in pod["metadata"] and not pod.get("status"):
                self.set_pod(pod, running(**status), node="node1")

    def set_pod(self, pod: Object, status: Object, node: str = "") -> None:
        """What a kubelet reports."""
        spec = {**pod["spec"], "nodeName": node} if node else pod["spec"]
        self.cluster.edit(POD, KEY.namespace, pod["metadata"]["name"], status=status, spec=spec)

    def end_worker(self, index: int, code: int, cause: str = "", reason: str = "", step: int | None = None) -> None:
        """The worker of the pod of this index, by name, ends, and the operator looks."""
        pod = self.pods[index]
        words = {"code": code, "cause": cause, "worker": "train-0"} | ({} if step is None else {"step": step})
        self.set_pod(pod, ended(code, json.dumps(words), reason))
        self.settle()

    def to_running(self, **spec: Any) -> None:
        """Submit, and let everything start."""
        self.submit(**spec)
        self.settle()
        self.run_pods()
        self.settle()
        assert self.status.phase == "Running", self.status

    @property
    def job(self) -> Object:
        job = self.cluster.peek(RLJOB, KEY.namespace, KEY.name)
        assert job is not None
        return job

    @property
    def status(self) -> RLJobStatus:
        return read_status(self.job.get("status"))

    @property
    def pods(self) -> list[Object]:
        return self.cluster.all(POD, KEY.namespace)

    @property
    def attempts_alive(self) -> set[str]:
        """Attempts that have a pod which may run."""
        alive = (pod for pod in self.pods if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"))
        result = (pod["metadata"]["labels"].get("rljob.dev/attempt") for pod in alive)
        return {attempt for attempt in result if attempt is not None}

    def condition(self, type_: Any) -> Condition:
        result = condition(self.status.conditions, type_)
        assert result is not None, f"no condition {type_}"
        return result

    def reason(self, type_: Any) -> tuple[str, str]:
        """Status and reason of a condition."""
        result = self.condition(type_)
        return result.status, result.reason


class WatchedWorkloads(KindWatch):
    """Those of a world, as a watch reports them."""

    def __init__(self, world: World) -> None:
        self._world = world

    @property
    def kind(self) -> ResourceKind:
        return WORKLOAD_KUEUE

    def of(self, key: Key) -> list[Object]:
        return self._world.watched(key)


class WatchedRayServices(KindWatch):
    """Those of a world, as a watch reports them."""

    def __init__(self, world: World) -> None:
        self._world = world

    @property
    def kind(self) -> ResourceKind | None:
        return RAY_SERVICE if self._world.has_kube_ray and self._world.rules.pods.ray_services else None

    def of(self, key: Key) -> list[Object]:
        result = self._world.cluster.all(RAY_SERVICE, key.namespace, f"rljob.dev/job={key.name}")
        return [{name: item[name] for name in ("metadata", "status") if name in item} for item in result]


TWO_PODS: dict[str, Any] = {"workerGroups": [{"name": "train", "replicas": 2}]}


def running(**more: Any) -> Object:
    """The status of a pod whose containers are ready."""
    true = [{"type": item, "status": "True"} for item in ("PodScheduled", "Initialized", "ContainersReady", "Ready")]
    return {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "conditions": true,
        "initContainerStatuses": [{"name": "data-buffer", "restartCount": 0, "state": {"running": {}}}],
        "containerStatuses": [{"name": "worker", "restartCount": 0, "state": {"running": {}}}],
        **more,
    }


def ended(code: int, message: str = "", reason: str = "", **more: Any) -> Object:
    """The status of a pod whose worker has ended."""
    word = reason or ("Completed" if code == 0 else "Error")
    terminated = {"exitCode": code, "reason": word, "message": message}
    return {
        "phase": "Failed" if code else "Succeeded",
        "podIP": "10.0.0.1",
        "conditions": [{"type": "Ready", "status": "False"}, {"type": "PodScheduled", "status": "True"}],
        "initContainerStatuses": [{"name": "data-buffer", "restartCount": 0, "state": {"terminated": {"exitCode": 0}}}],
        "containerStatuses": [{"name": "worker", "restartCount": 0, "state": {"terminated": terminated}}],
        **more,
    }


def disrupted(status: Object, reason: str) -> Object:
    """A pod's status once the cluster takes its node away."""
    target = {"type": "DisruptionTarget", "status": "True", "reason": reason}
    return {**status, "conditions": [*status["conditions"], target]}
