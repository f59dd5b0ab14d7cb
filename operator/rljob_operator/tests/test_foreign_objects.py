"""Objects of somebody else that bear a name which the operator wants: not adopted, not changed, not deleted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rljob_api.vocabulary import keys
from rljob_operator.cluster.api import Object
from rljob_operator.cluster.kinds import CONFIG_MAP, POD, SECRET, SERVICE, WORKLOAD_KUEUE, ResourceKind
from rljob_operator.tests.fake_cluster import names
from rljob_operator.tests.fake_queue import FakeQueue
from rljob_operator.tests.world import KEY, TWO_PODS, World

FOREIGN: dict[ResourceKind, dict[str, Any]] = {
    CONFIG_MAP: {"data": {"theirs": "1"}},
    SERVICE: {"spec": {"ports": []}},
    SECRET: {"data": {"token": "dGhlaXJz"}},
    POD: {"spec": {"containers": [{"name": "theirs"}]}, "status": {"phase": "Running"}},
}
"""What each has where one of ours has something else."""
OWNERS = {
    "nobody": [],
    "another job": [{"kind": "RLJob", "name": "other", "uid": "uid-other", "controller": True}],
    "ours, not in control": [{"kind": "RLJob", "name": KEY.name, "uid": "uid-2", "controller": False}],
}
LABELS = {"rljob.dev/job": KEY.name, "rljob.dev/group": "train", "rljob.dev/attempt": "1"}


def wanted_name(kind: ResourceKind) -> str:
    """The name of the job's first child of a kind, in a world without others."""
    world = World()
    world.submit(**TWO_PODS)
    world.settle()
    return names(world.cluster.all(kind, KEY.namespace))[0]


def put_foreign(world: World, kind: ResourceKind, owner: str) -> Object:
    """One that even has the labels of a child."""
    metadata = {"name": wanted_name(kind), "labels": LABELS, "ownerReferences": OWNERS[owner]}
    return world.cluster.put(kind, KEY.namespace, {"metadata": metadata, **FOREIGN[kind]})


@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("kind", FOREIGN, ids=lambda kind: kind.kind)
def test_object_of_somebody_else_is_in_the_way_and_stays_as_it_is(kind: ResourceKind, owner: str) -> None:
    world = World()
    foreign = put_foreign(world, kind, owner)
    name = foreign["metadata"]["name"]
    world.submit(**TWO_PODS)
    world.settle()
    assert world.reason("Scheduled") == ("False", "NameConflict")
    assert f"{kind.kind} {name} in namespace team belongs to somebody else" in world.condition("Scheduled").message
    for _ in range(3):
        world.wait(600)  # it tries again
    world.edit(suspend=True)
    world.wait(60)
    assert world.cluster.all(kind, KEY.namespace, "rljob.dev/job=small") == [foreign]
    assert all(pod == foreign for pod in world.pods), "half a gang is of no use"

    world.edit(suspend=False)
    world.cluster.remove(kind, foreign, grace_seconds=0)
    for _ in range(2):
        world.wait(600)
    assert names(world.pods) == [f"small-train-{host}-a{world.status.attempt}" for host in (0, 1)]
    assert world.status.restarts == 0, "what was in the way is not a failure of the job"


def test_plan_of_somebody_else_does_not_take_the_place_of_the_one_that_runs() -> None:
    world = World()
    world.to_running()
    ours = world.cluster.all(CONFIG_MAP, KEY.namespace)[0]
    other = World()
    other.submit(**TWO_PODS)
    other.settle()
    plan_of_two = other.cluster.all(CONFIG_MAP, KEY.namespace)[0]["data"][keys.PLAN_KEY]
    world.cluster.remove(CONFIG_MAP, ours)
    name = ours["metadata"]["name"]
    theirs = {"metadata": {"name": name}, "data": {keys.PLAN_KEY: plan_of_two}}
    foreign = world.cluster.put(CONFIG_MAP, KEY.namespace, theirs)
    world.rules = replace(world.rules, heal_interval_seconds=30.0)  # to come to rest, though nothing can be healed
    world.restart_operator()  # what it remembered of the plan is gone
    world.settle()
    assert (world.status.phase, world.status.ready) == ("Running", "1/1")
    world.wait(30)
    assert world.reason("Degraded") == ("True", "NameConflict")
    assert world.cluster.peek(CONFIG_MAP, KEY.namespace, name) == foreign


def test_place_in_a_queue_of_somebody_else_is_not_taken_for_ours() -> None:
    world = World(select=lambda context: FakeQueue())
    body = {"apiVersion": WORKLOAD_KUEUE.api_version, "kind": WORKLOAD_KUEUE.kind, "metadata": {"name": "rljob-small"}}
    foreign = world.cluster.put(WORKLOAD_KUEUE, KEY.namespace, {**body, "status": {"word": "Admitted"}})
    world.rules = replace(world.rules, heal_interval_seconds=30.0)
    world.restart_operator()
    world.submit()
    world.settle()
    world.wait(30)
    assert world.reason("QuotaReserved") == ("False", "NameConflict") and not world.pods
    assert "Workload rljob-small" in world.condition("QuotaReserved").message
    world.edit(suspend=True)
    world.wait(60)
    assert world.cluster.all(WORKLOAD_KUEUE) == [foreign]
