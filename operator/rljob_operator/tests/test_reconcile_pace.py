"""How often a job is looked at, what a look costs, and what is said where one fails."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rljob_operator.acting.children import NotOurs
from rljob_operator.cluster.api import Object
from rljob_operator.cluster.errors import (
    Forbidden,
    Gone,
    NotFound,
    QuotaExceeded,
    Rejected,
    Unavailable,
    UpdateConflict,
)
from rljob_operator.cluster.kinds import CONFIG_MAP, POD, RLJOB, SERVICE
from rljob_operator.gangs.provider import GangProvider
from rljob_operator.manifests.context import JobContext
from rljob_operator.reconcile import obstacle_of
from rljob_operator.states.situation.conditions import Reason
from rljob_operator.states.situation.situation import Obstacle
from rljob_operator.tests.fake_cluster import LateCache
from rljob_operator.tests.world import KEY, TWO_PODS, World

THE_JOB = ("get", "RLJob", "small")


def paced(**rules: Any) -> World:
    """Where children are compared every 30 s and a job that runs is looked at every 20 s, or as configured."""
    world = World()
    known = {"heal_interval_seconds": 30.0, "look_again_seconds": 20.0, **rules}
    world.rules = replace(world.rules, **known)
    world.restart_operator()
    return world


def take_over_service(world: World) -> Object:
    """Somebody else's bears the name now."""
    ours = world.cluster.peek(SERVICE, KEY.namespace, "small")
    assert ours is not None
    world.cluster.remove(SERVICE, ours)
    return world.cluster.put(SERVICE, KEY.namespace, {"metadata": {"name": "small"}, "spec": {"ports": []}})


def test_while_pods_come_up_one_look_sees_what_many_changes_did() -> None:
    world = paced(quiet_seconds=5.0)
    world.submit()
    world.reconcile()
    assert world.status.phase == "Starting"
    world.cluster.requests.clear()
    assert world.reconcile() == 5.0
    world.clock.now += 4.5
    assert world.reconcile() == 0.5 and world.cluster.requests == []
    world.clock.now += 0.5
    world.reconcile()
    assert world.cluster.requests


def test_a_gang_that_runs_is_looked_at_as_soon_as_something_changes() -> None:
    world = paced(quiet_seconds=5.0)
    world.submit()
    world.reconcile()
    world.clock.now += 5
    world.run_pods()
    world.reconcile()
    assert world.status.phase == "Running"
    assert world.reconcile() == 20.0


def test_a_look_at_a_job_that_runs_asks_the_cluster_nothing() -> None:
    """Pods and the job are known from watches, and children are compared now and then."""
    world = paced()
    world.to_running(**TWO_PODS)
    world.settle()
    world.cluster.requests.clear()
    for _ in range(3):
        assert world.reconcile() == 20.0
    world.clock.now += 29.5
    world.reconcile()
    assert world.cluster.requests == []
    world.clock.now += 0.5
    world.reconcile()
    assert ("get", "Service", "small") in world.cluster.requests
    world.cluster.requests.clear()
    world.reconcile()
    assert world.cluster.requests == []


def test_nothing_is_remembered_of_a_job_that_ended() -> None:
    """Thousands may stay."""
    world = paced()
    world.to_running()
    world.end_worker(0, 0)
    world.settle()
    plan = str(world.status.plan_config_map)
    for _ in range(2):
        world.cluster.requests.clear()
        assert world.reconcile() is None
        assert world.cluster.requests == [THE_JOB, ("get", "ConfigMap", plan)]


def test_looks_that_change_nothing_come_after_pauses_that_grow(caplog: pytest.LogCaptureFixture) -> None:
    world = paced(heal_interval_seconds=0.0)
    world.to_running()
    take_over_service(world)
    # the first look meets it, the second says so, which is news
    assert [world.reconcile() for _ in range(11)] == [0.5, 0.0, 0.5, 1, 2, 4, 8, 16, 32, 60, 60]
    assert "Service small in namespace team belongs to somebody else" in caplog.text


def test_what_is_in_the_way_of_a_job_that_runs_is_said_until_it_is_gone() -> None:
    """A look that did not try what was refused knows nothing of it."""
    world = paced()
    world.to_running()
    world.clock.now += 30
    foreign = take_over_service(world)
    assert world.reconcile() == 30.0
    for _ in range(3):
        assert world.reconcile() == 20.0
        assert world.reason("Degraded") == ("True", "NameConflict")
        world.clock.now += 9
    world.cluster.remove(SERVICE, foreign)
    world.clock.now += 3
    world.settle()
    assert world.reason("Degraded") == ("False", "AsExpected")
    assert world.cluster.peek(SERVICE, KEY.namespace, "small") is not None


def test_an_attempt_that_cannot_be_made_is_given_up_at_once() -> None:
    world = paced()
    world.cluster.refuse = lambda verb, kind, name: (
        Forbidden(verb, kind, KEY.namespace, "no") if (verb, kind) == ("create", POD) else None
    )
    world.submit()
    assert world.reconcile() == 0.0


def test_all_children_that_were_healed_are_reported_in_one_event() -> None:
    world = paced()
    world.to_running()
    service = world.cluster.peek(SERVICE, KEY.namespace, "small")
    plan = world.cluster.all(CONFIG_MAP, KEY.namespace)[0]
    assert service is not None
    world.cluster.remove(SERVICE, service)
    world.cluster.remove(CONFIG_MAP, plan)
    world.wait(30)
    notes = [event["message"] for event in world.cluster.events("ChildHealed")]
    assert notes == [f"ConfigMap {plan['metadata']['name']}, Service small"]


def failing_once(world: World, meanwhile: Any) -> None:
    """While a job is looked at, something happens to it, and then the look fails for a bug of ours."""

    def select(context: JobContext) -> GangProvider:
        meanwhile()
        raise KeyError("worker")

    world.select = select
    world.restart_operator()
    with pytest.raises(KeyError):
        world.reconcile()


def test_of_a_job_that_went_while_a_look_failed_nothing_is_said() -> None:
    world = World()
    world.submit()
    failing_once(world, lambda: world.cluster.remove(RLJOB, world.job))
    assert world.cluster.peek_job() is None and world.cluster.events() == []


def test_nor_of_one_that_others_reconcile_by_then() -> None:
    world = World()
    world.submit()
    failing_once(world, lambda: world.edit(managedBy="kueue.x-k8s.io/multikueue"))
    assert "status" not in world.job


def test_no_attempt_begins_beside_pods_that_a_late_watch_does_not_tell_of() -> None:
    world = World()
    world.to_running(**TWO_PODS)
    world.cluster.node_is_dead = lambda pod: True
    world.end_worker(0, 137)
    world.wait(3)
    assert world.status.phase == "Restarting" and len(world.pods) == 1
    cache = LateCache(world.cluster)
    world.cache = cache
    world.restart_operator()
    world.settle()
    assert world.status.attempt == 1 and world.attempts_alive == {"1"}
    world.cluster.node_is_dead = lambda pod: False
    world.wait(1)
    assert world.status.attempt == 2 and world.attempts_alive == {"2"}


def test_the_server_is_asked_for_pods_before_every_attempt_but_the_first() -> None:
    world = World()
    world.submit()
    world.reconcile()
    assert [request for request in world.cluster.requests if request[:2] == ("list", "Pod")] == []
    world.run_pods()
    world.settle()
    world.end_worker(0, 75)
    world.wait(3)
    world.wait(3)
    assert world.status.attempt == 2
    assert [request for request in world.cluster.requests if request[:2] == ("list", "Pod")] != []


CHILD = {"metadata": {"name": "small", "namespace": "team"}}
ARGUMENTS: tuple[Any, ...] = ("create", POD, "team", "words")
PREDECESSORS = "belongs to a deleted job of the same name; delete or rename it"
OTHERS = "belongs to somebody else; delete or rename it"


@pytest.mark.parametrize(
    ("error", "obstacle"),
    [
        (
            NotOurs(SERVICE, CHILD, True),
            Obstacle(Reason.PREDECESSOR_ENDING, f"Service small in namespace team {PREDECESSORS}"),
        ),
        (NotOurs(SERVICE, CHILD, False), Obstacle(Reason.NAME_CONFLICT, f"Service small in namespace team {OTHERS}")),
        (QuotaExceeded(*ARGUMENTS), Obstacle(Reason.QUOTA_EXCEEDED, "cannot create pods in namespace team: words")),
        (
            Forbidden(*ARGUMENTS),
            Obstacle(
                Reason.FORBIDDEN,
                "the operator may not create pods in namespace team; grant its service account that verb: words",
            ),
        ),
        (NotFound(*ARGUMENTS), Obstacle(Reason.KIND_MISSING, "cannot create pods in namespace team: words")),
        (Rejected(*ARGUMENTS), Obstacle(Reason.REJECTED, "cannot create pods in namespace team: words")),
        *(
            (error(*ARGUMENTS), Obstacle(Reason.CLUSTER_FAILS, "cannot create pods in namespace team: words", False))
            for error in (Unavailable, Gone, UpdateConflict)
        ),
        (ValueError("no"), Obstacle(Reason.OPERATOR_ERROR, "ValueError: no", False)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_what_a_look_met_as_a_condition_says_it(error: Exception, obstacle: Obstacle) -> None:
    assert obstacle_of(error) == obstacle
