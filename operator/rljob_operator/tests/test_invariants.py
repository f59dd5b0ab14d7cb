"""Whatever happens, in whatever order: what must always hold."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api.v1alpha1.status import ENDED_PHASES, RLJobStatus
from rljob_operator.cluster.api import Object
from rljob_operator.cluster.kinds import WORKLOAD_KUEUE
from rljob_operator.states.situation.conditions import is_true
from rljob_operator.tests.fake_queue import FakeQueue
from rljob_operator.tests.random_events import (
    OPERATIONS,
    SPEC,
    WITH_SERVICES,
    EventfulWorld,
    is_of_service,
    is_over,
    life_of,
)
from rljob_operator.tests.world import World

Step = tuple[str, int]
RECOVERY: list[Step] = [("pass_time", 1), ("pass_time", 1), ("queue", 1), ("pass_time", 1)] + 2 * [("run_pods", 3)]
"""All that ended goes, and the next attempt runs, after the models beside it."""

CRASH: list[Step] = [("end_a_worker", 3), *RECOVERY]
LOSS: list[Step] = [("delete_a_pod", 1), *RECOVERY]
ONE = st.tuples(st.sampled_from(sorted(OPERATIONS)), st.integers(0, 29)).map(lambda step: [step])
STEPS = st.lists(ONE | st.sampled_from([RECOVERY, CRASH, LOSS]), max_size=20).map(lambda parts: sum(parts, []))
"""By chance alone, what it takes to restart hardly ever comes in a row, and never twice."""


@settings(max_examples=6)
@given(STEPS)
def test_invariants(steps: list[Step]) -> None:
    check(SPEC, steps)


@settings(max_examples=5)
@given(STEPS)
def test_invariants_with_models_beside_the_job(steps: list[Step]) -> None:
    check(WITH_SERVICES, steps)


@pytest.mark.slow
@settings(max_examples=200)
@given(st.sampled_from([SPEC, WITH_SERVICES]), STEPS)
def test_invariants_in_a_long_search(spec: dict[str, Any], steps: list[Step]) -> None:
    check(spec, steps)


def check(spec: dict[str, Any], steps: list[Step]) -> None:
    """Let it all happen, and look after each."""
    world = EventfulWorld(spec)
    world.submit(**spec)
    before, uid = world.status, world.job["metadata"]["uid"]
    for name, number in [("pass_time", 0), ("queue", 1), ("pass_time", 0), *2 * [("run_pods", 3)], *steps]:
        OPERATIONS[name](world, number)
        world.settle()
        if world.job["metadata"]["uid"] != uid:
            before, uid = RLJobStatus(), world.job["metadata"]["uid"]
        after = world.status
        assert all("deletionTimestamp" in pod["metadata"] for pod in unwanted(world, after)), "strays go"
        assert world.num_made_beside == 0, "pods of two attempts, or of two jobs, are alive together"
        num_deletions = sum(verb == "delete" for verb, _, _ in world.cluster.requests)
        world.settle()
        assert sum(verb == "delete" for verb, _, _ in world.cluster.requests) == num_deletions, "once is enough"
        for counter in ("attempt", "restarts", "counted_restarts", "active_seconds"):
            assert getattr(after, counter) >= getattr(before, counter), counter
        assert after.counted_restarts <= min(after.restarts, 2), "maxRestarts"
        assert not (is_true(after.conditions, "Complete") and is_true(after.conditions, "Failed"))
        if is_true(after.conditions, "Suspended"):
            assert not [pod for pod in world.own_pods if not is_over(pod)], "a suspended job has no pods"
        for final in ("Complete", "Failed"):
            if is_true(before.conditions, final):  # type: ignore[arg-type]
                assert is_true(after.conditions, final), "an end is final"  # type: ignore[arg-type]
                assert after.attempt == before.attempt
        if after.phase == "Suspended":
            assert not world.cluster.all(WORKLOAD_KUEUE), "a suspended job holds no place in a queue"
        for one, other in zip(before.services, after.services, strict=False):
            assert one.start <= other.start and one.failures <= other.failures <= 2 + other.stopped, "maxRestarts"
        if after.phase in ("Succeeded", "Failed"):
            assert all(FakeQueue.is_finished(item) for item in world.cluster.all(WORKLOAD_KUEUE)), "quota goes back"
        if after.phase in ENDED_PHASES:
            assert all("deletionTimestamp" in pod["metadata"] for pod in world.pods if not is_over(pod)), "work ends"
        assert after.attempt <= before.attempt + 1
        before = after
    assert not world.made_again, "a pod of one attempt is made once"


def unwanted(world: EventfulWorld, status: RLJobStatus) -> list[Object]:
    """Pods of other lives than the ones that are meant to be; of a model that ended with the job, the logs stay."""
    lives = {str(service.start) for service in status.services}
    gang = [pod for pod in world.pods if not is_of_service(pod) and life_of(pod) != str(status.attempt)]
    models = [pod for pod in world.pods if is_of_service(pod) and life_of(pod) not in lives]
    return [*gang, *(pod for pod in models if not (status.phase in ENDED_PHASES and is_over(pod)))]


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
