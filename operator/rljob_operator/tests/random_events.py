"""What may happen to a job, its pods, its queue, its cluster and its operators, by name."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from threading import Thread
from typing import Any

from rljob_operator.acting.children import NotOurs
from rljob_operator.cluster.api import Object
from rljob_operator.cluster.errors import (
    AlreadyExists,
    ApiError,
    Forbidden,
    Gone,
    NotFound,
    QuotaExceeded,
    Rejected,
    Unavailable,
)
from rljob_operator.cluster.kinds import POD, RLJOB, WORKLOAD_KUEUE, ResourceKind
from rljob_operator.manifests.metadata import controller, is_child_of
from rljob_operator.states.situation.facts import ProgressAnswer, UnreachableLead
from rljob_operator.tests.fake_queue import FakeQueue, let_in, take_back
from rljob_operator.tests.world import KEY, TWO_PODS, World, disrupted, ended, running

SPEC: dict[str, Any] = {
    **TWO_PODS,
    "failurePolicy": {"maxRestarts": 2},
    "lifecycle": {"stallSeconds": 300, "pendingSeconds": 2000, "forceDeleteSeconds": 20},
    "scheduling": {"timeoutSeconds": 100},
}


WITH_SERVICES: dict[str, Any] = {**SPEC, "services": [{"name": "my_judge", "run": "mine:app"}]}


NULLS: dict[str, Any] = {
    "tolerations": None,
    "nodeSelector": None,
    "containers": [{"name": "worker", "resources": None, "env": None, "securityContext": {"capabilities": None}}],
}
"""What an API server lets through in a pod template, and a person writes who leaves a field empty."""


class EventfulWorld(World):
    """Counts pods that were made while one of another attempt, or of another start of the same service, or of another
    job of this name, may have run."""

    def __init__(self, spec: dict[str, Any] = SPEC) -> None:
        super().__init__(select=lambda context: FakeQueue(), progress_interval_seconds=5.0)
        self.spec = spec
        self.num_made_beside = 0
        self.made_again: list[str] = []
        """Names of pods that one job got more than once."""
        made = set[tuple[str, str]]()
        create = self.cluster.create

        async def watched_create(kind: ResourceKind, namespace: str | None, body: Object) -> Object:
            if kind == POD:
                self.num_made_beside += any(not is_over(pod) and is_beside(pod, body) for pod in self.pods)
            answer = await create(kind, namespace, body)
            if kind == POD:
                pod = controller(body)["uid"], body["metadata"]["name"]
                self.made_again += [pod[1]] if pod in made else []
                made.add(pod)
            return answer

        self.cluster.create = watched_create  # type: ignore[method-assign]

    @property
    def own_pods(self) -> list[Object]:
        """Without those of a job that was deleted, and had this one's name."""
        return [pod for pod in self.pods if is_child_of(pod, self.job["metadata"]["uid"])]


def is_beside(pod: Object, other: Object) -> bool:
    """Whether both have one host name. What a label no longer leads to has none, and what a deleted job owns goes
    without us."""
    if controller(pod).get("uid") == controller(other).get("uid"):
        return is_of_service(pod) == is_of_service(other) and life_of(pod) != life_of(other)
    return (pod["metadata"].get("labels") or {}).get("rljob.dev/job") == KEY.name


def life_of(pod: Object) -> str:
    """The attempt of a gang's pod, or the start of a service's."""
    return str(pod["metadata"]["name"]).rpartition("-r" if is_of_service(pod) else "-a")[2]


def is_of_service(pod: Object) -> bool:
    return str(pod["metadata"]["name"]).startswith("small-my.judge-r")


def is_over(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def pass_time(world: World, seconds: int) -> None:
    world.clock.now += seconds
    world.cluster.end_pods()


def run_pods(world: World, number: int) -> None:
    for pod in world.pods[: number % 4]:
        if "deletionTimestamp" not in pod["metadata"]:
            world.set_pod(pod, running(), node="node1")


def end_a_worker(world: World, number: int) -> None:
    codes = (0, 0, 65, 70, 74, 75, 75, 76, 137, 143)
    if world.pods:
        world.set_pod(world.pods[number % len(world.pods)], ended(codes[number % len(codes)]))


def delete_a_pod(world: World, number: int) -> None:
    if world.pods:
        world.cluster.remove(POD, world.pods[number % len(world.pods)], grace_seconds=number % 2 or None)


def drain(world: World, number: int) -> None:
    if world.pods:
        pod = world.pods[number % len(world.pods)]
        world.set_pod(pod, disrupted(running(), "EvictionByEvictionAPI"))
        world.cluster.remove(POD, pod)


def lose_nodes(world: World, number: int) -> None:
    world.cluster.node_is_dead = lambda pod: number % 2 == 0


def suspend(world: World, number: int) -> None:
    world.edit(suspend=number % 2 == 0)


def queue(world: World, number: int) -> None:
    for workload in world.cluster.all(WORKLOAD_KUEUE):
        (let_in if number % 3 else take_back)(world.cluster, workload)


def answer(world: World, number: int) -> None:
    answers = (UnreachableLead("no"), ProgressAnswer(attempt=world.status.attempt, step=number % 5, total_steps=10))
    world.progress.answer = answers[number % 2]


def delay_the_watch(world: World, number: int) -> None:
    world.late_since = world.cluster.version if number % 2 else None


def restart_operator(world: World, number: int) -> None:
    world.restart_operator()


def hold_a_pod(world: World, number: int) -> None:
    """Somebody else's controller puts its finalizer on a pod, or takes it off."""
    if world.pods:
        pod = world.pods[number % len(world.pods)]
        finalizers = ["example.com/held"] if number % 3 else []
        world.cluster.edit(
            POD, KEY.namespace, pod["metadata"]["name"], metadata={**pod["metadata"], "finalizers": finalizers}
        )


def let_go(world: World, number: int) -> None:
    for pod in world.pods:
        metadata = {**pod["metadata"], "finalizers": []}
        world.cluster.edit(POD, KEY.namespace, pod["metadata"]["name"], metadata=metadata)


def stray_pod(world: World, number: int) -> None:
    """A leader that was paused makes a pod of an attempt that is over."""
    attempt = world.status.attempt - 1 - number % 2
    if attempt > 0:
        name = f"small-train-{number % 2}-a{attempt}"
        labels = {"rljob.dev/job": KEY.name, "rljob.dev/attempt": str(attempt), "rljob.dev/group": "train"}
        owner = {"kind": "RLJob", "name": KEY.name, "uid": world.job["metadata"]["uid"], "controller": True}
        metadata = {"name": name, "labels": labels, "ownerReferences": [owner]}
        if world.cluster.peek(POD, KEY.namespace, name) is None:
            spec = {"containers": [], "nodeName": "node1"}
            world.cluster.put(POD, KEY.namespace, {"metadata": metadata, "spec": spec, "status": running()})


def stray_service(world: World, number: int) -> None:
    """A stray pod of a service."""
    start = next((service.start for service in world.status.services), 0) - 1 - number % 2
    name = f"small-my.judge-r{start}"
    if start > 0 and world.cluster.peek(POD, KEY.namespace, name) is None:
        labels = {"rljob.dev/job": KEY.name, "rljob.dev/service": "my_judge"}
        owner = {"kind": "RLJob", "name": KEY.name, "uid": world.job["metadata"]["uid"], "controller": True}
        metadata = {"name": name, "labels": labels, "ownerReferences": [owner]}
        spec = {"containers": [], "nodeName": "node1"}
        world.cluster.put(POD, KEY.namespace, {"metadata": metadata, "spec": spec, "status": running()})


def relabel(world: World, number: int) -> None:
    """A label that says which pod it is, of which the name says so too, or by which it is found."""
    if world.pods:
        pod = world.pods[number % len(world.pods)]
        label = ("rljob.dev/attempt", "rljob.dev/group", "rljob.dev/job")[number % 3]
        labels = {**pod["metadata"]["labels"], label: str(number)}
        world.cluster.edit(POD, KEY.namespace, pod["metadata"]["name"], metadata={**pod["metadata"], "labels": labels})


def delete_the_place(world: World, number: int) -> None:
    for workload in world.cluster.all(WORKLOAD_KUEUE):
        world.cluster.remove(WORKLOAD_KUEUE, workload)


def cluster_errors(world: World, number: int) -> None:
    """For a while requests of one verb end with one of the errors."""
    error = (Forbidden, NotFound, Rejected, QuotaExceeded, Unavailable, Gone, AlreadyExists)[number % 7]
    verb = ("create", "delete", "get", "list", "patch", "patch status")[number % 6]
    world.cluster.refuse = lambda asked, kind, name: error(asked, kind, "team", "no") if asked == verb else None
    for _ in range(3):
        with contextlib.suppress(ApiError):
            world.reconcile()
        world.clock.now += 1
    world.cluster.refuse = lambda verb, kind, name: None


def put_the_clock(world: World, number: int) -> None:
    """Forward or back, for everybody but the operator's own measure of pauses."""
    world.clock.ahead += (3600, -3600, 86400, -40)[number % 4]


def null_in_the_template(world: World, number: int) -> None:
    """Edited where nothing refuses that; what is read is the spec that the job runs by, or none."""
    (group,) = world.job["spec"]["workerGroups"]
    template = {"spec": NULLS if number % 2 else {}}
    world.edit(workerGroups=[{**group, "template": template}])


def recreate(world: EventfulWorld, number: int) -> None:
    """The job is deleted and made again while its pods die; the new one may have nulls in its template."""
    world.cluster.remove(RLJOB, world.job)
    (group,) = world.spec["workerGroups"]
    nulls = {"workerGroups": [{**group, "template": {"spec": NULLS}}]} if number % 2 else {}
    world.submit(**{**world.spec, **nulls})


def two_leaders(world: EventfulWorld, number: int) -> None:
    """One that was paused in the middle of a look goes on with it when another has long taken over."""
    paused, remaining, made_beside = world.operator, number % 12, world.num_made_beside

    def take_over(verb: str, kind: ResourceKind, name: str) -> None:
        nonlocal remaining
        remaining -= 1
        if remaining == 0:
            world.restart_operator()
            successor = Thread(target=world.settle)
            successor.start()
            successor.join()

    world.cluster.refuse = take_over
    with contextlib.suppress(ApiError, NotOurs):
        asyncio.run(paused.reconcile(KEY))
    world.cluster.refuse = lambda verb, kind, name: None
    world.num_made_beside = made_beside  # its pods are strays, which must go before the next attempt begins
    world.restart_operator()


OPERATIONS: Mapping[str, Callable[[Any, int], None]] = {
    item.__name__: item
    for item in (
        *(run_pods, end_a_worker, delete_a_pod, drain, lose_nodes),
        *(suspend, queue, answer, delay_the_watch, restart_operator),
        *(hold_a_pod, let_go, stray_pod, stray_service, relabel, delete_the_place, cluster_errors),
        *(put_the_clock, null_in_the_template, recreate, two_leaders),
    )
} | {"pass_time": lambda world, number: pass_time(world, (1, 3, 30, 700)[number % 4])}
