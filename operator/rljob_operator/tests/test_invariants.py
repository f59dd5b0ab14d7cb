"""Whatever happens, in whatever order: what must always hold."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_operator.cluster.api import Object
from rljob_operator.cluster.errors import (
    ClusterError,
    Forbidden,
    Gone,
    NotFound,
    QuotaExceeded,
    Rejected,
    Unavailable,
)
from rljob_operator.cluster.kinds import POD, WORKLOAD_KUEUE, Kind
from rljob_operator.states.conditions import is_true
from rljob_operator.states.progress import ProgressAnswer, Unreachable
from rljob_operator.tests.fake_queue import FakeQueue, let_in, take_back
from rljob_operator.tests.world import KEY, TWO_PODS, World, disrupted, ended, running

SPEC: dict[str, Any] = {
    **TWO_PODS,
    "failurePolicy": {"maxRestarts": 2},
    "lifecycle": {"stallSeconds": 300, "pendingSeconds": 2000, "forceDeleteSeconds": 20},
    "scheduling": {"timeoutSeconds": 100},
}


class WatchedWorld(World):
    """Counts pods that were made while one of another attempt may have run."""

    def __init__(self) -> None:
        super().__init__(select=lambda context: FakeQueue(), progress_interval_seconds=5.0)
        self.num_made_beside = 0
        create = self.cluster.create

        async def watched_create(kind: Kind, namespace: str | None, body: Object) -> Object:
            if kind == POD:
                attempt = body["metadata"]["labels"]["rljob.dev/attempt"]
                self.num_made_beside += any(not is_over(pod) and attempt_of(pod) != attempt for pod in self.pods)
            return await create(kind, namespace, body)

        self.cluster.create = watched_create  # type: ignore[method-assign]


def attempt_of(pod: Object) -> str:
    return str(pod["metadata"]["name"]).rpartition("-a")[2]


def is_over(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def is_of_another_attempt(world: World, pod: Object) -> bool:
    return attempt_of(pod) != str(world.status.attempt)


def pass_time(world: World, seconds: int) -> None:
    world.clock.now += seconds
    world.cluster.end_pods()


def run_pods(world: World, number: int) -> None:
    for pod in world.pods[: number % 3]:
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
    answers = (Unreachable("no"), ProgressAnswer(attempt=world.status.attempt, step=number % 5, total_steps=10))
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
    error = (Forbidden, NotFound, Rejected, QuotaExceeded, Unavailable, Gone)[number % 6]
    verb = ("create", "delete", "get", "list", "patch")[number % 5]
    world.cluster.refuse = lambda asked, kind, name: error(asked, kind, "team", "no") if asked == verb else None
    for _ in range(3):
        with contextlib.suppress(ClusterError):
            world.reconcile()
        world.clock.now += 1
    world.cluster.refuse = lambda verb, kind, name: None


OPERATIONS: Mapping[str, Callable[[World, int], None]] = {
    each.__name__: each
    for each in (
        *(run_pods, end_a_worker, delete_a_pod, drain, lose_nodes),
        *(suspend, queue, answer, delay_the_watch, restart_operator),
        *(hold_a_pod, let_go, stray_pod, relabel, delete_the_place, cluster_errors),
    )
} | {"pass_time": lambda world, number: pass_time(world, (1, 3, 30, 700)[number % 4])}

Step = tuple[str, int]
RECOVERY: list[Step] = [("pass_time", 1), ("pass_time", 1), ("queue", 1), ("pass_time", 1), ("run_pods", 2)]
"""All that ended goes, and the next attempt runs."""

CRASH: list[Step] = [("end_a_worker", 3), *RECOVERY]
LOSS: list[Step] = [("delete_a_pod", 1), *RECOVERY]
ONE = st.tuples(st.sampled_from(sorted(OPERATIONS)), st.integers(0, 29)).map(lambda step: [step])
STEPS = st.lists(ONE | st.sampled_from([RECOVERY, CRASH, LOSS]), max_size=20).map(lambda parts: sum(parts, []))
"""By chance alone, what it takes to restart hardly ever comes in a row, and never twice."""


@settings(max_examples=50)
@given(STEPS)
def test_invariants(steps: list[Step]) -> None:
    world = WatchedWorld()
    world.submit(**SPEC)
    before = world.status
    for name, number in [("pass_time", 0), ("queue", 1), ("pass_time", 0), ("run_pods", 2), *steps]:
        OPERATIONS[name](world, number)
        world.settle()
        after = world.status
        unwanted = [pod for pod in world.pods if is_of_another_attempt(world, pod)]
        assert all("deletionTimestamp" in pod["metadata"] for pod in unwanted), "strays go"
        assert world.num_made_beside == 0, "pods of two attempts are alive together"
        num_deletions = sum(verb == "delete" for verb, _, _ in world.cluster.requests)
        world.settle()
        assert sum(verb == "delete" for verb, _, _ in world.cluster.requests) == num_deletions, "once is enough"
        for counter in ("attempt", "restarts", "counted_restarts", "active_seconds"):
            assert getattr(after, counter) >= getattr(before, counter), counter
        assert after.counted_restarts <= min(after.restarts, 2), "maxRestarts"
        assert not (is_true(after.conditions, "Complete") and is_true(after.conditions, "Failed"))
        if is_true(after.conditions, "Suspended"):
            assert not [pod for pod in world.pods if not is_over(pod)], "a suspended job has no pods"
        for final in ("Complete", "Failed"):
            if is_true(before.conditions, final):  # type: ignore[arg-type]
                assert is_true(after.conditions, final), "an end is final"  # type: ignore[arg-type]
                assert after.attempt == before.attempt
        if after.phase == "Suspended":
            assert not world.cluster.all(WORKLOAD_KUEUE), "a suspended job holds no place in a queue"
        if after.phase in ("Succeeded", "Failed"):
            assert all(FakeQueue.is_finished(each) for each in world.cluster.all(WORKLOAD_KUEUE)), "quota goes back"
        assert after.attempt <= before.attempt + 1
        before = after
    made = [name for verb, kind, name in world.cluster.done if (verb, kind) == ("create", "Pod")]
    assert len(made) == len(set(made)), "a pod of one attempt is made once"


def test_the_walk_reaches_every_phase() -> None:
    """The invariants above say nothing where nothing happens."""
    world = World(select=lambda context: FakeQueue(), progress_interval_seconds=5.0)
    world.submit(**SPEC)
    seen = set()
    walk = [
        ("pass_time", 0),
        ("queue", 1),
        ("pass_time", 0),
        ("run_pods", 2),
        ("drain", 0),
        ("end_a_worker", 7),
        ("pass_time", 2),
        ("pass_time", 1),
    ]
    walk += [("pass_time", 1), ("run_pods", 2), ("suspend", 0), ("pass_time", 3), ("suspend", 1), ("queue", 1)]
    walk += [("run_pods", 2), ("end_a_worker", 0), ("end_a_worker", 1)]
    for name, number in walk:
        OPERATIONS[name](world, number)
        world.settle()
        seen.add(world.status.phase)
    assert seen >= {"Pending", "Starting", "Running", "Suspended", "Succeeded"}, seen
    assert (world.status.attempt, world.status.restarts, world.status.counted_restarts) == (3, 1, 0)
