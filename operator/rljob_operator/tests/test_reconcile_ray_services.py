"""Models beside a job where KubeRay serves them, on a fake cluster."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rljob_operator.cluster.kinds import POD, RAY_SERVICE, SERVICE, WORKLOAD_KUEUE
from rljob_operator.manifests.settings import PodSettings
from rljob_operator.tests.fake_cluster import names
from rljob_operator.tests.fake_queue import FakeQueue, let_in
from rljob_operator.tests.world import KEY, World

JUDGE: dict[str, Any] = {"services": [{"name": "judge", "run": "mine:app"}]}
GANG = "small-train-0-a1"


@pytest.fixture
def world() -> World:
    return World(pods=PodSettings(ray_services=True))


def rays(world: World) -> list[dict[str, Any]]:
    return world.cluster.all(RAY_SERVICE, KEY.namespace)


def starts(world: World) -> list[str]:
    return [name.rpartition("-")[2] for name in names(rays(world))]


def ray_status(world: World, status: str, message: str = "") -> None:
    """KubeRay writes how the application is, and the operator looks."""
    (ray,) = rays(world)
    applications = {"judge": {"status": status, "message": message}}
    ready = {"type": "Ready", "status": "True" if status == "RUNNING" else "False", "reason": "NonZeroServeEndpoints"}
    written = {"conditions": [ready], "activeServiceStatus": {"applicationStatuses": applications}}
    world.cluster.edit(RAY_SERVICE, KEY.namespace, ray["metadata"]["name"], status=written)
    world.settle()


def to_running(world: World, **spec: Any) -> None:
    """The model gets healthy, then the gang is made and runs."""
    world.submit(**JUDGE, **spec)
    world.settle()
    ray_status(world, "RUNNING")
    world.run_pods()
    world.settle()
    assert world.status.phase == "Running", world.status


def test_a_ray_service_is_made_in_a_pods_place_and_then_the_gang(world: World) -> None:
    world.submit(**JUDGE)
    world.settle()
    made = [kind for verb, kind, _ in world.cluster.done if verb == "create" and kind != "Event"]
    assert made[-2:] == ["Secret", "RayService"] and not world.pods
    assert world.reason("Scheduled") == ("False", "WaitingForServices")
    ray_status(world, "DEPLOYING", "loading")
    assert world.condition("ServicesReady").message == "not healthy yet: judge (DEPLOYING: loading)"
    ray_status(world, "RUNNING")
    assert world.reason("ServicesReady") == ("True", "ServicesHealthy")
    assert names(world.pods) == [GANG]
    env = {pod["name"]: pod.get("value") for pod in world.pods[0]["spec"]["containers"][0]["env"]}
    assert json.loads(env["RLJOB_SERVICES"]) == {"judge": "http://judge.rljob-services-small.team.svc:8816/judge"}
    assert world.cluster.peek(SERVICE, KEY.namespace, "rljob-services-small") is not None


def test_looks_at_a_job_that_runs_ask_nothing(world: World) -> None:
    to_running(world)
    world.settle()
    before = len(world.cluster.requests)
    for _ in range(3):
        world.reconcile()
    asked = {(verb, kind) for verb, kind, _ in world.cluster.requests[before:]}
    assert not {item for item in asked if item[1] == "RayService" or item == ("list", "Pod")}


def test_a_model_that_dies_is_said_and_is_kube_rays_to_start_again(world: World) -> None:
    to_running(world)
    ray_status(world, "UNHEALTHY", "CUDA is gone")
    assert world.reason("ServicesReady") == ("False", "ServiceUnhealthy")
    assert "CUDA is gone" in world.condition("ServicesReady").message and starts(world) == ["r1"]
    assert (world.status.phase, world.status.restarts) == ("Running", 0)
    ray_status(world, "RUNNING")
    assert world.reason("ServicesReady")[0] == "True"


def test_a_model_that_cannot_be_served_fails_the_job_and_gives_its_pods_back(world: World) -> None:
    world.submit(**JUDGE)
    world.settle()
    ray_status(world, "DEPLOY_FAILED", "no module named 'mine'")
    assert world.reason("Failed") == ("True", "ServiceFailed")
    assert "no module named 'mine'" in world.condition("ServicesReady").message
    world.wait(5)
    assert not rays(world)


def test_one_that_somebody_deleted_is_replaced_when_its_pods_are_gone(world: World) -> None:
    to_running(world)
    world.cluster.remove(RAY_SERVICE, rays(world)[0])
    world.settle()
    assert starts(world) == ["r1"], "both at once would be more than was asked for"
    world.wait(5)
    assert starts(world) == ["r2"] and world.status.services[0].failures == 0


def test_an_operator_that_has_just_begun_finds_it_there(world: World) -> None:
    to_running(world)
    world.restart_operator()
    world.settle()
    assert starts(world) == ["r1"] and world.reason("ServicesReady")[0] == "True"


def test_suspend_gives_everything_back_the_model_after_the_gang(world: World) -> None:
    world.select = lambda context: FakeQueue()
    world.restart_operator()
    world.submit(**JUDGE)
    world.settle()
    assert not rays(world), "a model is part of what waits for quota"
    let_in(world.cluster, world.cluster.all(WORKLOAD_KUEUE)[0])
    world.settle()
    ray_status(world, "RUNNING")
    world.run_pods()
    world.settle()
    world.edit(suspend=True)
    world.settle()
    assert "deletionTimestamp" not in rays(world)[0]["metadata"] and world.pods
    world.wait(5)
    assert not world.pods and "deletionTimestamp" in rays(world)[0]["metadata"]
    assert world.cluster.all(WORKLOAD_KUEUE), "the quota is held while its pods may run"
    world.wait(5)
    assert not rays(world) and not world.cluster.all(WORKLOAD_KUEUE)
    assert world.reason("Suspended")[0] == "True"
    world.edit(suspend=False)
    world.settle()
    let_in(world.cluster, world.cluster.all(WORKLOAD_KUEUE)[0])
    world.settle()
    assert starts(world) == ["r2"], "numbers go on"


def test_the_end_of_the_job_is_that_of_its_model(world: World) -> None:
    to_running(world)
    world.end_worker(0, 0, step=10)
    world.wait(5)
    assert world.status.phase == "Succeeded" and not rays(world)


def test_without_kube_ray_the_job_is_refused_by_name_until_it_is_there(world: World) -> None:
    world.has_kube_ray = False
    world.submit(**JUDGE)
    world.settle()
    assert world.reason("Accepted") == ("False", "KubeRayMissing")
    assert "does not serve ray.io/v1; install KubeRay" in world.condition("Accepted").message
    assert not rays(world) and not world.pods
    world.has_kube_ray = True
    world.wait(60)
    assert starts(world) == ["r1"] and world.reason("Accepted")[0] == "True"


def test_a_job_without_models_needs_no_kube_ray(world: World) -> None:
    world.has_kube_ray = False
    world.to_running()


def test_pods_that_kube_ray_made_are_left_alone(world: World) -> None:
    to_running(world)
    owner = {"kind": "RayCluster", "name": "x", "uid": "of-kube-ray", "controller": True}
    labels = {"rljob.dev/job": "small", "rljob.dev/service": "judge", "rljob.dev/component": "service"}
    body = {"metadata": {"name": "x-worker", "labels": labels, "ownerReferences": [owner]}, "spec": {"nodeName": "n"}}
    world.cluster.put(POD, KEY.namespace, body)
    world.edit(suspend=True)
    world.settle()
    world.wait(5)
    assert names(world.pods) == ["x-worker"] and "deletionTimestamp" not in world.pods[0]["metadata"]


def test_a_gang_that_lost_a_pod_finds_its_model_as_it_was(world: World) -> None:
    to_running(world)
    world.cluster.remove(POD, world.pods[0], grace_seconds=0)
    world.settle()
    world.wait(5)
    assert world.status.attempt == 2
    assert starts(world) == ["r1"] and world.status.services[0].ready


def test_a_ray_service_of_somebody_else_is_no_model_of_the_job(world: World) -> None:
    labels = {"rljob.dev/job": "small", "rljob.dev/service": "judge"}
    world.cluster.put(RAY_SERVICE, KEY.namespace, {"metadata": {"name": "theirs-r1", "labels": labels}})
    world.submit(**JUDGE)
    world.settle()
    own, theirs = rays(world)
    assert own["metadata"]["name"].startswith("small-judge-") and theirs["metadata"]["name"] == "theirs-r1"
    assert "deletionTimestamp" not in theirs["metadata"]


def test_pods_that_kube_ray_made_say_why_their_own_model_does_not_start(world: World) -> None:
    world.submit(**JUDGE)
    world.settle()
    for service, why in (("another", "no disk"), ("judge", "no cpu")):
        status = {"conditions": [{"type": "PodScheduled", "status": "False", "message": why}]}
        labels = {"rljob.dev/job": "small", "rljob.dev/service": service}
        body = {"metadata": {"name": f"of-{service}", "labels": labels}, "spec": {}, "status": status}
        world.cluster.put(POD, KEY.namespace, body)
    world.settle()
    assert world.condition("ServicesReady").message == "not healthy yet: judge (no cpu)"
