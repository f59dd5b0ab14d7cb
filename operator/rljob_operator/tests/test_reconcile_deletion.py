"""What becomes of the pods of a job that somebody deletes."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_operator.cluster.errors import Forbidden
from rljob_operator.cluster.kinds import POD, RLJOB
from rljob_operator.tests.fake_cluster import names
from rljob_operator.tests.world import KEY, TWO_PODS, World


def graces(world: World) -> list[int | None]:
    return [pod["metadata"].get("deletionGracePeriodSeconds") for pod in world.pods]


@pytest.mark.parametrize(
    ("lifecycle", "seconds"),
    [({}, 20), ({"deletionGraceSeconds": 45}, 45), ({"terminationGraceSeconds": 5}, 5)],
    ids=["default", "as the job says", "never longer"],
)
def test_pods_of_a_deleted_job_have_a_short_grace(lifecycle: dict[str, Any], seconds: int) -> None:
    world = World()
    world.to_running(**TWO_PODS, lifecycle=lifecycle)
    world.cluster.remove(RLJOB, world.job)
    assert graces(world) == [lifecycle.get("terminationGraceSeconds", 600)] * 2
    world.restart_operator()
    world.reconcile()
    assert graces(world) == [seconds] * 2
    num_requests = len(world.cluster.requests)
    world.reconcile()
    assert [verb for verb, _, _ in world.cluster.requests[num_requests:]] == ["get"]


def test_pods_go_at_once_while_the_job_waits_for_them() -> None:
    """`kubectl delete --cascade=foreground`."""
    world = World()
    world.to_running(**TWO_PODS)
    world.cluster.edit(
        RLJOB, *KEY, metadata={**world.job["metadata"], "deletionTimestamp": "2027-01-15T08:00:00Z"}
    )  # fmt: skip
    world.cluster.remove(POD, world.pods[0])
    world.reconcile()
    assert graces(world) == [20, None]


def test_pods_of_a_job_that_is_deleted_without_them_stay() -> None:
    """Their owner is gone before garbage collection takes the reference off."""
    world = World()
    world.to_running(**TWO_PODS)
    for pod in world.pods:
        (owner,) = pod["metadata"]["ownerReferences"]
        metadata = {**pod["metadata"], "ownerReferences": [{**owner, "uid": "of-the-deleted"}]}
        world.cluster.edit(POD, KEY.namespace, pod["metadata"]["name"], metadata=metadata)
    world.cluster.remove(RLJOB, world.job)
    world.reconcile()
    assert graces(world) == [None, None]


def test_pods_of_the_last_that_may_not_be_deleted_wedge_no_job_of_the_same_name() -> None:
    world = World()
    world.to_running(**TWO_PODS)
    world.cluster.remove(RLJOB, world.job)
    world.submit(**TWO_PODS)
    held = names(world.pods)
    world.cluster.refuse = lambda verb, kind, name: (
        Forbidden(verb, kind, KEY.namespace, "a webhook holds it") if verb == "delete" and name in held else None
    )
    for _ in range(10):
        with pytest.raises(Forbidden):
            world.reconcile()
    assert world.reason("Degraded") == ("True", "Forbidden")
    world.edit(suspend=True)
    with pytest.raises(Forbidden):
        world.reconcile()
    assert world.status.phase == "Suspended"


def test_a_job_of_the_same_name_waits_no_longer_for_the_pods_of_the_last() -> None:
    world = World()
    world.to_running(**TWO_PODS)
    world.cluster.remove(RLJOB, world.job)
    world.submit(**TWO_PODS)
    world.settle()
    assert graces(world) == [20, 20] and world.reason("Scheduled") == ("False", "PredecessorEnding")
    world.wait(20)
    assert world.status.phase == "Starting" and graces(world) == [None, None]
