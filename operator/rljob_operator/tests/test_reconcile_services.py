"""Models beside a job, on a fake cluster."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rljob_operator.cluster.errors import QuotaExceeded
from rljob_operator.cluster.kinds import CONFIG_MAP, NETWORK_POLICY, POD, SERVICE, WORKLOAD_KUEUE
from rljob_operator.tests.fake_cluster import names
from rljob_operator.tests.fake_queue import FakeQueue, let_in, take_back
from rljob_operator.tests.world import KEY, World, disrupted, running

JUDGE: dict[str, Any] = {"services": [{"name": "judge", "run": "mine:app"}]}
MODEL, GANG = "small-judge-r1", "small-train-0-a1"


@pytest.fixture
def world() -> World:
    return World()


def to_running(world: World, **spec: Any) -> None:
    """The model gets healthy, then the gang is made and runs."""
    world.submit(**JUDGE, **spec)
    world.settle()
    for _ in range(2):
        world.run_pods()
        world.settle()
    assert world.status.phase == "Running", world.status


def end_model(world: World, code: int, cause: str) -> None:
    """The process in the model's pod, which comes first by name, ends."""
    terminated = {"exitCode": code, "reason": "Error", "message": json.dumps({"code": code, "cause": cause})}
    container = {"name": "service", "restartCount": 0, "state": {"terminated": terminated}}
    world.set_pod(world.pods[0], {"phase": "Failed", "containerStatuses": [container]})
    world.settle()


def test_a_model_is_made_with_all_it_needs_and_then_the_gang(world: World) -> None:
    world.submit(**JUDGE)
    world.reconcile()
    made = [(kind, name) for verb, kind, name in world.cluster.done if kind != "Event"]
    assert made[0] == ("RLJob", "small"), "the attempt is written before anything is made"
    assert [kind for kind, _ in made[1:]] == ["ConfigMap", "Service", "Service", "Secret", "Pod"]
    assert names(world.pods) == [MODEL]
    world.settle()
    assert world.reason("Scheduled") == ("False", "WaitingForServices")
    world.run_pods()
    world.settle()
    assert world.reason("ServicesReady") == ("True", "ServicesHealthy")
    assert names(world.pods) == [MODEL, GANG]
    assert world.cluster.events("ServicesReady")[0]["message"] == "judge"


def test_a_model_that_dies_is_replaced_and_the_gang_goes_on(world: World) -> None:
    to_running(world)
    end_model(world, 1, "RuntimeError: out of memory")
    assert names(world.pods) == ["small-judge-r2", GANG]
    assert (world.status.phase, world.status.attempt, world.status.restarts) == ("Running", 1, 0)
    assert "RuntimeError: out of memory" in world.condition("ServicesReady").message
    assert [event["type"] for event in world.cluster.events("ServiceFailed")] == ["Warning"]
    world.run_pods()
    world.settle()
    assert world.reason("ServicesReady")[0] == "True" and world.status.services[0].failures == 1


def test_a_model_whose_pod_vanished_is_replaced_also_by_an_operator_that_has_just_begun(world: World) -> None:
    to_running(world)
    world.restart_operator()
    world.cluster.remove(POD, world.pods[0], grace_seconds=0)
    world.settle()
    assert names(world.pods) == ["small-judge-r2", GANG] and world.status.services[0].failures == 0


def test_a_drained_model_moves(world: World) -> None:
    to_running(world)
    world.set_pod(world.pods[0], disrupted(running(), "EvictionByEvictionAPI"))
    world.cluster.remove(POD, world.pods[0])
    world.settle()
    assert names(world.pods) == [MODEL, GANG], "both at once would be more than was asked for"
    world.wait(5)
    assert names(world.pods) == ["small-judge-r2", GANG]
    assert "EvictionByEvictionAPI" in world.condition("ServicesReady").message


def test_a_model_that_lost_its_label_goes_before_another_is_made(world: World) -> None:
    to_running(world)
    pod = world.pods[0]
    labels = {name: value for name, value in pod["metadata"]["labels"].items() if name != "rljob.dev/job"}
    world.cluster.edit(POD, KEY.namespace, MODEL, metadata={**pod["metadata"], "labels": labels})
    world.settle()
    assert [name for name in names(world.pods) if "judge" in name] == [MODEL]
    world.wait(5)
    assert names(world.pods) == ["small-judge-r2", GANG]


def test_a_model_that_cannot_be_served_fails_the_job_and_its_pod_stays_for_its_log(world: World) -> None:
    world.submit(**JUDGE)
    world.settle()
    end_model(world, 64, "InvalidJob: service judge: no module named 'mine'")
    assert world.reason("Failed") == ("True", "ServiceFailed")
    assert "no module named 'mine'" in world.condition("ServicesReady").message
    assert names(world.pods) == [MODEL]
    world.wait(600)
    assert world.status.attempt == 1 and names(world.pods) == [MODEL]


def test_a_model_that_is_never_healthy_is_tried_again_within_bounds(world: World) -> None:
    world.submit(**JUDGE, failurePolicy={"maxRestarts": 1})
    world.settle()
    end_model(world, 75, "DeadlineExceeded: not healthy after healthSeconds 600: loading")
    assert not world.pods, "there is a pause"
    world.wait(10)
    assert names(world.pods) == ["small-judge-r2"]
    end_model(world, 75, "DeadlineExceeded: not healthy after healthSeconds 600: loading")
    assert world.reason("Failed") == ("True", "ServiceFailed")
    assert "all 1 restarts of failurePolicy are used up" in world.condition("Failed").message


def test_a_gang_that_restarts_finds_its_model_as_it_was(world: World) -> None:
    to_running(world)
    world.end_worker(1, 70, "ValueError: mine")
    world.wait(3)
    assert names(world.pods) == [MODEL, "small-train-0-a2"]
    world.run_pods()
    world.settle()
    assert (world.status.phase, world.status.attempt) == ("Running", 2)


def test_suspend_gives_everything_back_the_model_after_the_gang(world: World) -> None:
    world.select = lambda context: FakeQueue()
    world.restart_operator()
    world.submit(**JUDGE)
    world.settle()
    assert not world.pods, "a model is part of what waits for quota"
    let_in(world.cluster, world.cluster.all(WORKLOAD_KUEUE)[0])
    world.settle()
    for _ in range(2):
        world.run_pods()
        world.settle()
    world.edit(suspend=True)
    world.settle()
    going = [pod["metadata"]["name"] for pod in world.pods if "deletionTimestamp" in pod["metadata"]]
    assert going == [GANG] and world.cluster.all(WORKLOAD_KUEUE)
    world.wait(5)
    assert names(world.pods) == [MODEL] and world.status.phase == "Suspending"
    assert world.cluster.all(WORKLOAD_KUEUE), "the quota is held while it may run"
    world.wait(5)
    assert not world.pods and not world.cluster.all(WORKLOAD_KUEUE)
    assert world.reason("Suspended")[0] == "True" and world.reason("ServicesReady")[1] == "ServicesStopped"
    world.edit(suspend=False)
    world.settle()
    let_in(world.cluster, world.cluster.all(WORKLOAD_KUEUE)[0])
    world.settle()
    assert names(world.pods) == ["small-judge-r2"], "numbers go on"


def test_an_evicted_job_queues_again_when_its_model_is_gone(world: World) -> None:
    world.select = lambda context: FakeQueue()
    world.restart_operator()
    world.submit(**JUDGE)
    world.settle()
    let_in(world.cluster, world.cluster.all(WORKLOAD_KUEUE)[0])
    world.settle()
    world.run_pods()
    world.settle()
    take_back(world.cluster, world.cluster.all(WORKLOAD_KUEUE)[0])
    world.settle()
    world.wait(5)
    world.wait(5)
    assert not world.pods
    assert world.cluster.all(WORKLOAD_KUEUE)[0]["status"] == {"word": "Waiting"}


def test_quota_that_leaves_no_room_for_a_model_gives_the_attempt_up(world: World) -> None:
    world.cluster.refuse = lambda verb, kind, name: (
        QuotaExceeded(verb, kind, KEY.namespace, "exceeded quota") if (verb, kind) == ("create", POD) else None
    )
    world.submit(**JUDGE)
    world.settle()
    assert world.reason("Degraded") == ("True", "QuotaExceeded") and not world.pods
    assert world.status.next_attempt_time is not None


def test_the_end_of_the_job_is_that_of_its_model(world: World) -> None:
    to_running(world)
    world.end_worker(1, 0, step=10)
    world.wait(5)
    assert world.status.phase == "Succeeded" and names(world.pods) == [GANG]


def test_what_workers_ask_is_what_resolves(world: World) -> None:
    to_running(world)
    model, gang = world.pods
    env = {item["name"]: item.get("value") for item in gang["spec"]["containers"][0]["env"]}
    url = "http://judge.rljob-services-small.team.svc:8816/judge"
    assert json.loads(env["RLJOB_SERVICES"]) == {"judge": url}
    assert env["RLJOB_SERVICES_TOKEN_FILE"] == "/etc/rljob/token/token"
    domain = world.cluster.peek(SERVICE, KEY.namespace, "rljob-services-small")
    assert domain is not None and domain["spec"]["selector"].items() <= model["metadata"]["labels"].items()
    assert not domain["spec"]["selector"].items() <= gang["metadata"]["labels"].items()
    assert (model["spec"]["hostname"], model["spec"]["subdomain"]) == ("judge", "rljob-services-small")
    tokens = [_secret_of(pod) for pod in (model, gang)]
    assert tokens == ["small-token", "small-token"]


def _secret_of(pod: dict[str, Any]) -> str:
    return next(item["secret"]["secretName"] for item in pod["spec"]["volumes"] if item["name"] == "token")


def test_a_deleted_domain_of_models_is_healed(world: World) -> None:
    to_running(world)
    service = world.cluster.peek(SERVICE, KEY.namespace, "rljob-services-small")
    assert service is not None
    world.cluster.remove(SERVICE, service)
    world.wait(31)
    assert world.cluster.peek(SERVICE, KEY.namespace, "rljob-services-small") is not None


def test_only_workers_of_the_job_reach_its_models(world: World) -> None:
    rules = World(pods=world.rules.pods.model_validate({"networkPolicy": {"enabled": True}}))
    to_running(rules)
    (policy,) = rules.cluster.all(NETWORK_POLICY, KEY.namespace)
    model, gang = rules.pods
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= model["metadata"]["labels"].items()
    ((peer,),) = ([item["podSelector"]["matchLabels"] for item in rule["from"]] for rule in policy["spec"]["ingress"])
    assert peer.items() <= gang["metadata"]["labels"].items()
    assert not peer.items() <= model["metadata"]["labels"].items()


def test_code_that_a_model_names_is_looked_for(world: World) -> None:
    world.cluster.put(CONFIG_MAP, KEY.namespace, {"metadata": {"name": "code"}, "data": {"other.py": ""}})
    world.submit(**JUDGE, code={"configMap": "code"})
    world.settle()
    assert world.reason("Accepted") == ("False", "CodeMissing")
    assert "no entry mine.py" in world.condition("Accepted").message and not world.pods


def on(profile: str, **fields: Any) -> dict[str, Any]:
    group = {"accelerator": {"profile": profile, "count": 2}, **fields}
    return {"services": [{"name": "judge", "run": "mine:app", "workerGroup": group}]}


def test_a_model_on_accelerators_comes_before_the_gang_and_asks_for_them(world: World) -> None:
    world.submit(**on("nvidia-h100"))
    world.settle()
    (pod,) = world.pods
    (container,) = pod["spec"]["containers"]
    assert names(world.pods) == [MODEL] and container["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    world.run_pods()
    world.settle()
    assert names(world.pods) == [MODEL, GANG]


@pytest.mark.parametrize(
    ("profile", "reason", "words"),
    [
        # an administrator may yet add it, or say what Ray calls it
        ("nvidia-h1000", "UnknownProfile", "Did you mean nvidia-h100?"),
        ("cambricon", "UnknownProfile", "Ray knows no such accelerator"),
        ("gaudi", "PodSecurityConflict", "services[0] judge with profile gaudi needs what spec.podSecurity"),
    ],
)
def test_a_model_on_accelerators_that_cannot_be_waits_and_says_why(
    world: World, profile: str, reason: str, words: str
) -> None:
    world.submit(**on(profile))
    world.settle()
    assert world.reason("Accepted") == ("False", reason) and not world.pods
    assert words in world.condition("Accepted").message and world.status.phase == "Pending"
