"""What becomes of a job that waits in Kueue's queue."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rljob_operator.cluster.api import Object
from rljob_operator.cluster.kinds import POD_GROUP_VOLCANO, PRIORITY_CLASS, RESOURCE_FLAVOR, RLJOB, WORKLOAD_KUEUE
from rljob_operator.gangs.pod_groups import Volcano
from rljob_operator.gangs.providers import GangProviders
from rljob_operator.gangs.schedulers import Recent, Schedulers
from rljob_operator.manifests.ceilings import Ceilings, QueueCeilings
from rljob_operator.tests.fake_cluster import names
from rljob_operator.tests.fake_queue import FakeQueue, let_in
from rljob_operator.tests.world import KEY, TWO_PODS, WatchedWorkloads, World, running

V1BETA1 = "kueue.x-k8s.io/v1beta1"


class QueueWorld(World):
    """With the real adapter of Kueue, whose scheduler is the test."""

    def gangs(self) -> GangProviders:
        recent = Recent(self.cluster, self.clock)
        schedulers = Schedulers(recent, lambda: {V1BETA1})
        return GangProviders(self.cluster, recent, schedulers, WatchedWorkloads(self))

    def label(self, **labels: str) -> None:
        metadata = {
            **self.job["metadata"],
            "labels": {f"kueue.x-k8s.io/{k.replace('_', '-')}": v for k, v in labels.items()},
        }
        self.cluster.edit(RLJOB, KEY.namespace, KEY.name, metadata=metadata)
        self.settle()

    @property
    def workload(self) -> Object:
        workload = self.cluster.peek(WORKLOAD_KUEUE, KEY.namespace, "rljob-small")
        assert workload is not None
        return workload

    def admit(self, **assignment: Any) -> None:
        conditions = [
            {"type": item, "status": "True", "reason": "x", "lastTransitionTime": "2027-01-01T00:00:00Z"}
            for item in ("QuotaReserved", "Admitted")
        ]
        asked = [item["name"] for item in self.workload["spec"]["podSets"]]
        admission = {"clusterQueue": "rl", "podSetAssignments": [{"name": item, **assignment} for item in asked]}
        self.cluster.edit(
            WORKLOAD_KUEUE, KEY.namespace, "rljob-small", status={"conditions": conditions, "admission": admission}
        )
        self.settle()


@pytest.fixture
def world() -> QueueWorld:
    return QueueWorld()


QUEUED: dict[str, Any] = {"scheduling": {"provider": "Kueue", "queue": "rl", "timeoutSeconds": 60}, **TWO_PODS}


def test_job_that_waits_costs_one_read_a_look(world: QueueWorld) -> None:
    world.submit(**QUEUED)
    world.settle()
    world.cluster.requests.clear()
    for _ in range(10):
        world.wait(6)
    asked = [(verb, kind) for verb, kind, _ in world.cluster.requests]
    assert set(asked) == {("get", "RLJob")}, asked


def test_job_that_runs_asks_its_queue_nothing(world: QueueWorld) -> None:
    world.submit(**QUEUED)
    world.settle()
    world.admit()
    world.run_pods()
    world.settle()
    assert world.status.phase == "Running"
    world.settle()
    world.cluster.requests.clear()
    for _ in range(6):
        world.wait(10)
    assert not [request for request in world.cluster.requests if request[1] == "Workload"], world.cluster.requests


def test_queue_relabelled_while_waiting_is_followed_and_later_not(world: QueueWorld) -> None:
    world.submit(**QUEUED)
    world.settle()
    assert world.workload["spec"]["queueName"] == "rl"
    world.label(queue_name="other")
    assert world.workload["spec"]["queueName"] == "other" and world.workload["spec"]["podSets"]
    world.admit()
    world.label(queue_name="third")
    assert world.workload["spec"]["queueName"] == "other", "with quota a Workload keeps its queue"


def test_priority_follows_the_spec(world: QueueWorld) -> None:
    for name, value in (("low", 1), ("high", 1000)):
        world.cluster.put(PRIORITY_CLASS, None, {"metadata": {"name": name}, "value": value})
    scheduling = {**QUEUED["scheduling"], "priorityClassName": "low"}
    world.submit(**{**QUEUED, "scheduling": scheduling})
    world.settle()
    assert (world.workload["spec"]["priorityClassName"], world.workload["spec"]["priority"]) == ("low", 1)
    world.edit(scheduling={**scheduling, "priorityClassName": "high"})
    world.settle()
    assert (world.workload["spec"]["priorityClassName"], world.workload["spec"]["priority"]) == ("high", 1000)


def test_job_whose_workload_is_deleted_does_not_run_without_quota(world: QueueWorld) -> None:
    world.submit(**QUEUED)
    world.settle()
    world.admit()
    world.run_pods()
    world.settle()
    world.cluster.remove(WORKLOAD_KUEUE, world.workload)
    world.settle()
    assert world.status.phase == "Suspending" and world.reason("QuotaReserved") == ("False", "QuotaPending")
    world.wait(30)
    assert world.status.phase == "Pending" and not world.pods
    assert "admission" not in world.workload.get("status", {}), "it asks for quota again"
    world.admit()
    assert (world.status.attempt, world.status.restarts) == (2, 0)


def test_watch_that_is_behind_takes_no_place_away(world: QueueWorld) -> None:
    world.submit(**QUEUED)
    world.settle()
    world.admit()
    world.run_pods()
    world.settle()
    world.watched = lambda key: []  # type: ignore[method-assign]
    world.restart_operator()
    world.settle()
    assert world.status.phase == "Running"


def test_half_a_gang_gives_its_places_back_unless_kueue_itself_places_it(world: QueueWorld) -> None:
    world.submit(**QUEUED)
    world.settle()
    world.admit()
    world.set_pod(world.pods[0], running(), node="node1")
    world.wait(60)
    assert world.reason("Scheduled") == ("False", "GangTimedOut")


def test_pods_that_kueue_places_are_waited_for(world: QueueWorld) -> None:
    world.submit(**QUEUED)
    world.settle()
    world.admit(topologyAssignment={"levels": []})
    world.set_pod(world.pods[0], running(), node="node1")
    world.wait(60)
    assert world.status.phase == "Starting" and world.status.attempt == 1


def test_flavor_that_cannot_be_read_keeps_pods_from_being_made_and_ends_none(world: QueueWorld) -> None:
    world.submit(**QUEUED)
    world.settle()
    world.admit(flavors={"cpu": "spot"})
    assert not world.pods and "cannot read ResourceFlavor spot" in world.condition("QuotaReserved").message


def test_pods_stand_where_the_queue_has_room_for_them(world: QueueWorld) -> None:
    """Those of models beside the job as well."""
    about = {"apiVersion": V1BETA1, "kind": "ResourceFlavor", "metadata": {"name": "spot"}}
    world.cluster.put(RESOURCE_FLAVOR, None, {**about, "spec": {"nodeLabels": {"pool": "spot"}}})
    world.submit(**QUEUED, services=[{"name": "judge", "run": "mine:app"}])
    world.settle()
    world.admit(flavors={"cpu": "spot"})
    for _ in range(2):
        world.run_pods()
        world.settle()
    assert names(world.pods) == ["small-judge-r1", "small-train-0-a1", "small-train-1-a1"]
    assert [pod["spec"]["nodeSelector"] for pod in world.pods] == [{"pool": "spot"}] * 3


def test_finished_workload_is_no_place_to_wait_in() -> None:
    world = World(select=lambda context: FakeQueue())
    world.submit()
    world.settle()
    first = world.cluster.all(WORKLOAD_KUEUE)[0]
    world.cluster.edit(WORKLOAD_KUEUE, KEY.namespace, first["metadata"]["name"], status={"word": "Finished"})
    world.settle()
    world.wait(2)
    (second,) = world.cluster.all(WORKLOAD_KUEUE)
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    let_in(world.cluster, second)
    world.settle()
    assert world.status.phase == "Starting"


def test_eviction_is_seen_though_the_profile_of_the_job_is_gone() -> None:
    world = QueueWorld()
    world.submit(**QUEUED)
    world.settle()
    world.admit()
    world.run_pods()
    world.settle()
    world.rules = replace(world.rules, profiles={})
    world.restart_operator()
    world.settle()
    assert world.status.phase == "Running", "what runs runs on"
    evicted = {
        "type": "Evicted",
        "status": "True",
        "reason": "Preempted",
        "message": "preempted",
        "lastTransitionTime": "2027-01-01T00:00:00Z",
    }
    status = world.workload["status"]
    world.cluster.edit(
        WORKLOAD_KUEUE, KEY.namespace, "rljob-small", status={**status, "conditions": [*status["conditions"], evicted]}
    )
    world.settle()
    assert world.status.phase == "Suspending"
    world.wait(60)
    assert world.status.phase == "Pending" and not world.cluster.all(WORKLOAD_KUEUE)


def test_job_that_is_refused_its_scheduler_later_leaves_its_queue_at_once() -> None:
    world = QueueWorld()
    world.submit(**QUEUED)
    world.settle()
    assert world.workload
    cpu = world.rules.profiles["cpu"]
    world.rules = replace(world.rules, profiles={"cpu": cpu.model_copy(update={"schedulers": ("Volcano",)})})
    world.restart_operator()
    world.settle()
    assert world.reason("Accepted") == ("False", "SchedulerMissing")
    assert not world.cluster.all(WORKLOAD_KUEUE)


def test_pod_groups_are_not_asked_for_at_every_look() -> None:
    world = World(select=lambda context: Volcano())
    world.to_running()
    world.settle()
    assert world.cluster.all(POD_GROUP_VOLCANO)
    world.cluster.requests.clear()
    for _ in range(6):
        world.wait(10)
    assert not [request for request in world.cluster.requests if request[1] == "PodGroup"]


def test_time_in_the_queue_of_a_gang_scheduler_does_not_count() -> None:
    world = World(select=lambda context: Volcano())
    world.submit(lifecycle={"pendingSeconds": 100}, **TWO_PODS)
    world.settle()
    world.wait(5000)
    assert world.status.phase == "Starting"
    for pod in world.pods:
        world.set_pod(pod, {"phase": "Pending"}, node="node1")
    world.settle()
    world.wait(99)
    assert world.status.phase == "Starting"
    world.wait(1)
    assert world.reason("Failed") == ("True", "PendingTimeout")


def queued_world(**queues: Any) -> QueueWorld:
    world = QueueWorld(ceilings=Ceilings(queues=QueueCeilings(**queues)))
    world.restart_operator()
    return world


def test_a_job_without_a_queue_gets_the_default_one() -> None:
    world = queued_world(default="main", required=True)
    world.submit()
    world.settle()
    assert world.workload["spec"]["queueName"] == "main" and not world.pods
    world.admit()
    assert len(world.pods) == 1


def test_a_job_without_a_queue_is_refused_where_every_job_waits_in_one() -> None:
    world = queued_world(required=True)
    world.submit()
    world.settle()
    assert world.reason("Accepted") == ("False", "BeyondCeilings") and not world.pods
    assert "kueue.x-k8s.io/queue-name" in world.condition("Accepted").message
    world.label(queue_name="rl")
    assert world.reason("Accepted") == ("True", "Valid") and world.workload["spec"]["queueName"] == "rl"


def test_a_job_that_runs_cannot_leave_the_queue_by_its_label() -> None:
    world = queued_world(required=True)
    world.submit()
    world.label(queue_name="rl")
    world.admit()
    world.run_pods()
    world.label()
    assert world.status.phase == "Running" and world.workload["spec"]["queueName"] == "rl"


def test_a_default_queue_is_for_the_next_attempt_of_a_job_that_runs_in_none() -> None:
    world = QueueWorld()
    world.to_running()
    world.rules = replace(world.rules, ceilings=Ceilings(queues=QueueCeilings(default="main")))
    world.restart_operator()
    world.settle()
    assert world.status.phase == "Running" and len(world.pods) == 1
    world.end_worker(0, 75)
    world.wait(600)
    assert world.workload["spec"]["queueName"] == "main" and not world.pods
