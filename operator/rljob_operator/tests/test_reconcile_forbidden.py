"""Each right of the operator is withheld for a whole life of a job, and then granted."""

from __future__ import annotations

import contextlib

import pytest

from rljob_operator.cluster.errors import ApiError, Forbidden
from rljob_operator.cluster.kinds import (
    CONFIG_MAP,
    EVENT,
    NAMESPACE,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    RLJOB,
    SECRET,
    SERVICE,
    STORAGE_CLASS,
    WORKLOAD_KUEUE,
    ResourceKind,
)
from rljob_operator.tests.fake_queue import FakeQueue, let_in
from rljob_operator.tests.world import KEY, World, ended

NEEDED = [
    *((verb, POD) for verb in ("list", "create", "delete")),
    *((verb, CONFIG_MAP) for verb in ("get", "create")),
    *((verb, SERVICE) for verb in ("get", "create")),
    ("create", SECRET),
    *((verb, WORKLOAD_KUEUE) for verb in ("create", "delete")),
]
"""Rules of the chart's `rljob.rules` without which there is no attempt, or none that ends."""

UNSAID = [("get", RLJOB), ("patch status", RLJOB)]
"""Nothing can be said of a job without them but in the log."""

DISPENSABLE = [
    ("list", CONFIG_MAP),
    ("get", SECRET),
    ("get", PERSISTENT_VOLUME_CLAIM),
    ("get", STORAGE_CLASS),
    ("get", NAMESPACE),
    ("create", EVENT),
]
"""What they would report or clean up is done without."""


class Without:
    """Refuses one right, and counts how often it was asked for."""

    def __init__(self, verb: str, kind: ResourceKind) -> None:
        self.right = (verb, kind)
        self.num_asked = 0

    def __call__(self, verb: str, kind: ResourceKind, name: str) -> ApiError | None:
        if (verb, kind) != self.right:
            return None
        self.num_asked += 1
        return Forbidden(verb, kind, KEY.namespace, f"may not {verb} {kind.plural}")


def look(world: World, seconds: float) -> set[str]:
    """For so long, as the queue would: an error is for the next look.  What is said of the job meanwhile."""
    said = set()
    for _ in range(8):
        for workload in world.cluster.all(WORKLOAD_KUEUE):
            let_in(world.cluster, workload)
        with contextlib.suppress(Forbidden):
            world.reconcile()
        world.run_pods()
        world.cluster.end_pods()
        world.clock.now += seconds / 8
        said |= {condition.message for condition in world.status.conditions}
    return said | {event["message"] for event in world.cluster.events()}


def live(world: World) -> set[str]:
    """Start, fail, start again, be suspended and resumed; everything that was said of the job meanwhile."""
    world.cluster.put(CONFIG_MAP, KEY.namespace, {"metadata": {"name": "mine"}, "data": {"my_rewards.py": ""}})
    claim = {"metadata": {"name": "disk"}, "spec": {"storageClassName": "fast"}, "status": {"phase": "Pending"}}
    world.cluster.put(PERSISTENT_VOLUME_CLAIM, KEY.namespace, claim)
    fast = {"metadata": {"name": "fast"}, "volumeBindingMode": "WaitForFirstConsumer"}
    world.cluster.put(STORAGE_CLASS, None, fast)
    world.submit(code={"configMap": "mine"}, storage={"persistentVolumeClaim": "disk"})
    said = look(world, 30)
    for pod in world.pods[:1]:
        world.set_pod(pod, ended(75))
    said |= look(world, 60)
    world.edit(suspend=True)
    said |= look(world, 60)
    world.edit(suspend=False)
    return said | look(world, 60)


@pytest.fixture
def world() -> World:
    return World(select=lambda context: FakeQueue())


def granted(world: World) -> World:
    """The right is there, and the job may end."""
    world.cluster.refuse = lambda verb, kind, name: None
    look(world, 600)
    for pod in world.pods:
        world.set_pod(pod, ended(0))
    look(world, 60)
    return world


@pytest.mark.parametrize(("verb", "kind"), NEEDED, ids=str)
def test_right_that_a_job_needs_is_named_and_it_goes_on_when_it_is_granted(
    world: World, verb: str, kind: ResourceKind
) -> None:
    world.cluster.refuse = without = Without(verb, kind)
    said = live(world)
    assert without.num_asked and any(f"may not {verb} {kind.plural}" in item for item in said), said
    assert without.num_asked <= 32, "a look asks once"
    assert granted(world).status.phase == "Succeeded"


@pytest.mark.parametrize(("verb", "kind"), UNSAID, ids=str)
def test_job_that_can_not_be_read_or_written_makes_no_pods(world: World, verb: str, kind: ResourceKind) -> None:
    world.cluster.refuse = without = Without(verb, kind)
    live(world)
    assert without.num_asked and not world.cluster.done, "what is not written down is not done"
    assert granted(world).status.phase == "Succeeded"


@pytest.mark.parametrize(("verb", "kind"), DISPENSABLE, ids=str)
def test_right_that_is_dispensable_is_done_without(world: World, verb: str, kind: ResourceKind) -> None:
    world.cluster.refuse = without = Without(verb, kind)
    live(world)
    assert without.num_asked
    assert (world.status.phase, world.status.attempt, world.status.restarts) == ("Running", 3, 1)
    assert granted(world).status.phase == "Succeeded"


def test_expired_job_that_may_not_be_deleted_is_left(world: World) -> None:
    world.cluster.refuse = without = Without("delete", RLJOB)
    world.submit(lifecycle={"ttlSecondsAfterFinished": 60})
    look(world, 30)
    world.set_pod(world.pods[0], ended(0))
    look(world, 200)
    assert without.num_asked and world.status.phase == "Succeeded"
    world.cluster.refuse = lambda verb, kind, name: None
    world.wait(60)
    assert world.cluster.peek_job() is None
