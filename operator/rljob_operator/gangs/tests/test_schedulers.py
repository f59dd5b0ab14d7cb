"""Tests of what is read of schedulers and priority classes."""

import asyncio

import pytest

from rljob_operator.cluster.errors import Forbidden
from rljob_operator.cluster.kinds import POD_GROUP_VOLCANO, PRIORITY_CLASS, WORKLOAD_PRIORITY_CLASS
from rljob_operator.gangs.pod_groups import Volcano
from rljob_operator.gangs.schedulers import Recent, Schedulers
from rljob_operator.manifests.tests.builders import make_context
from rljob_operator.tests.fake_cluster import FakeCluster, names
from rljob_operator.tests.world import Clock, World

KUEUE = "kueue.x-k8s.io/v1beta2"
HIGH = ("scheduling={provider: Kueue, priorityClassName: high}",)


def priority_of(cluster, *overrides, labels=None):
    context = make_context(*overrides, labels=labels)
    schedulers = Schedulers(Recent(cluster, Clock()), lambda: {KUEUE})
    asyncio.run(schedulers.learn(context))
    spec = schedulers.choose(context).objects(context, 1)[0]["spec"]
    return spec.get("priorityClassRef", {}).get("name"), spec.get("priority")


def test_the_value_of_a_priority_class_is_reported_to_kueue():
    cluster = FakeCluster(Clock())
    cluster.put(PRIORITY_CLASS, None, {"metadata": {"name": "high"}, "value": 1000})
    cluster.put(WORKLOAD_PRIORITY_CLASS, None, {"metadata": {"name": "urgent"}, "value": 7})
    assert priority_of(cluster, *HIGH) == ("high", 1000)
    assert priority_of(cluster, *HIGH, labels={"kueue.x-k8s.io/priority-class": "urgent"}) == ("urgent", 7)
    assert priority_of(cluster, "scheduling.provider=Kueue") == (None, None)


def test_a_job_queues_without_its_priority_where_the_operator_may_not_look():
    cluster = FakeCluster(Clock())
    cluster.refuse = lambda verb, kind, name: Forbidden(verb, kind, None, "no") if kind == PRIORITY_CLASS else None
    assert priority_of(cluster, *HIGH) == (None, None)


def test_a_job_whose_scheduler_is_missing_waits_and_says_so():
    world = World()
    schedulers = Schedulers(Recent(world.cluster, world.clock), lambda: set())
    world.select = schedulers.choose
    world.restart_operator()
    world.submit(scheduling={"provider": "Volcano"})
    world.reconcile()
    assert world.reason("Accepted") == ("False", "SchedulerMissing")
    assert "install Volcano" in world.condition("Accepted").message


def test_pod_groups_of_attempts_that_are_over_ask_for_no_room():
    world = World(select=lambda context: Volcano())
    world.to_running()
    world.end_worker(0, 75)
    world.wait(3)
    world.run_pods()
    world.settle()
    assert world.status.attempt == 2
    assert names(world.cluster.all(POD_GROUP_VOLCANO)) == ["small-a2"]
    world.edit(suspend=True)
    world.settle()
    world.wait(3)
    assert world.status.phase == "Suspended" and not world.cluster.all(POD_GROUP_VOLCANO)


def test_an_object_is_read_again_after_a_minute() -> None:
    clock = Clock()
    cluster = FakeCluster(clock)
    recent = Recent(cluster, clock)

    def value() -> object:
        result = asyncio.run(recent.get(PRIORITY_CLASS, "high"))
        return None if result is None else result["value"]

    assert value() is None
    cluster.put(PRIORITY_CLASS, None, {"metadata": {"name": "high"}, "value": 7})
    clock.now += 59
    assert value() is None and len(cluster.requests) == 1
    clock.now += 1
    assert value() == 7 and len(cluster.requests) == 2


def test_a_refusal_is_not_asked_for_at_every_look() -> None:
    clock = Clock()
    cluster = FakeCluster(clock)
    cluster.refuse = lambda verb, kind, name: Forbidden(verb, kind, None, "no")
    recent = Recent(cluster, clock)
    for _ in range(3):
        with pytest.raises(Forbidden):
            asyncio.run(recent.get(PRIORITY_CLASS, "high"))
    assert len(cluster.requests) == 1
