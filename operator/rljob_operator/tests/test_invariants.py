"""Whatever happens, in whatever order: what must always hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_operator.cluster.kinds import POD, WORKLOAD_KUEUE
from rljob_operator.states.conditions import is_true
from rljob_operator.states.progress import ProgressAnswer, Unreachable
from rljob_operator.tests.fake_queue import FakeQueue, let_in, take_back
from rljob_operator.tests.world import TWO_PODS, World, disrupted, ended, running

SPEC: dict[str, Any] = {
    **TWO_PODS,
    "failurePolicy": {"maxRestarts": 2},
    "lifecycle": {"stallSeconds": 300, "pendingSeconds": 2000, "forceDeleteSeconds": 20},
    "scheduling": {"timeoutSeconds": 100},
}


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


OPERATIONS: Mapping[str, Callable[[World, int], None]] = {
    each.__name__: each
    for each in (
        *(run_pods, end_a_worker, delete_a_pod, drain, lose_nodes),
        *(suspend, queue, answer, delay_the_watch, restart_operator),
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
    world = World(select=lambda context: FakeQueue(), progress_interval_seconds=5.0)
    world.submit(**SPEC)
    before = world.status
    for name, number in [("pass_time", 0), ("queue", 1), ("pass_time", 0), ("run_pods", 2), *steps]:
        OPERATIONS[name](world, number)
        world.settle()
        after = world.status
        assert len(world.attempts_alive) <= 1, "pods of two attempts are alive together"
        for counter in ("attempt", "restarts", "counted_restarts", "active_seconds"):
            assert getattr(after, counter) >= getattr(before, counter), counter
        assert after.counted_restarts <= min(after.restarts, 2), "maxRestarts"
        assert not (is_true(after.conditions, "Complete") and is_true(after.conditions, "Failed"))
        assert not (is_true(after.conditions, "Suspended") and world.pods), "a suspended job has no pods"
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
