"""What becomes of a job that cannot run, or not here."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from functools import reduce
from typing import Any

import pytest

from rljob_operator.cluster.errors import (
    ApiError,
    Forbidden,
    Gone,
    NotFound,
    QuotaExceeded,
    Rejected,
    Unavailable,
)
from rljob_operator.cluster.kinds import (
    CONFIG_MAP,
    NAMESPACE,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    RESOURCE_QUOTA,
    RLJOB,
    SECRET,
    SERVICE,
    STORAGE_CLASS,
    WORKLOAD_KUEUE,
    ResourceKind,
)
from rljob_operator.gangs.provider import GangProvider, Ungrouped
from rljob_operator.manifests.ceilings import Ceilings
from rljob_operator.manifests.context import JobContext
from rljob_operator.observing.progress import progress_of
from rljob_operator.tests.fake_cluster import names
from rljob_operator.tests.fake_queue import FakeQueue
from rljob_operator.tests.world import KEY, SPEC, TWO_PODS, World, ended


@pytest.fixture
def world() -> World:
    return World()


def nested(depth: int) -> dict[str, Any]:
    return reduce(lambda below, _: {"a": below}, range(depth), dict[str, Any]())


CYCLE = {
    "stages": [
        {"name": "rollout", "run": "Rollout", "models": ["actor"], "after": ["update"]},
        {"name": "reward", "run": "Reward", "after": ["rollout"]},
        {"name": "advantage", "run": "Advantage", "after": ["reward"]},
        {"name": "update", "run": "UpdatePolicy", "models": ["actor"], "after": ["advantage"]},
    ]
}


@pytest.mark.parametrize(
    ("spec", "reason", "words"),
    [
        ({"dag": CYCLE}, "InvalidDAG", "cycle"),
        ({"training": {"miniBatchRows": 5}}, "InvalidSpec", "spec.training.miniBatchRows"),
        ({"traning": {}}, "InvalidSpec", "Did you mean training?"),
        ({"dataBuffer": {"memory": "1Ki"}}, "InvalidSpec", "Set dataBuffer.memory to at least"),
        ({"workerGroups": [{"name": "train", "template": nested(300)}]}, "InvalidSpec", "nested more than 100 deep"),
    ],
)
def test_what_cannot_run_fails_before_any_pod(world: World, spec: dict[str, Any], reason: str, words: str) -> None:
    world.submit(**spec)
    world.settle()
    assert world.reason("Accepted") == ("False", reason) and world.reason("Failed") == ("True", reason)
    assert words in world.condition("Accepted").message
    assert world.status.attempt == 0 and not world.pods


def test_unknown_profile_waits_and_lists_the_known(world: World) -> None:
    world.submit(workerGroups=[{"name": "train", "accelerator": {"profile": "nvidia-h1000"}}])
    world.settle()
    assert world.reason("Accepted") == ("False", "UnknownProfile") and world.status.phase == "Pending"
    assert "nvidia-h100" in world.condition("Accepted").message
    world.wait(7200)
    assert world.reason("Failed") == ("True", "PendingTimeout")


ROOTS = [{"name": "train", "template": {"spec": {"hostNetwork": True}}}]


def test_a_job_beyond_a_ceiling_waits_and_says_which() -> None:
    world = World(ceilings=Ceilings(host_network=False))
    world.submit(workerGroups=ROOTS, podSecurity="Privileged")
    world.settle()
    assert world.reason("Accepted") == ("False", "BeyondCeilings") and not world.pods
    assert "worker group train: hostNetwork: true" in world.condition("Accepted").message
    world.edit(workerGroups=[{"name": "train"}])
    world.settle()
    assert world.reason("Accepted") == ("True", "Valid") and len(world.pods) == 1


def test_a_job_beyond_a_ceiling_takes_no_place_in_a_queue() -> None:
    queue = FakeQueue()
    world = World(lambda context: queue, ceilings=Ceilings(host_network=False))
    world.submit(workerGroups=ROOTS, podSecurity="Privileged")
    world.settle()
    assert world.reason("Accepted") == ("False", "BeyondCeilings") and not world.pods


def test_a_ceiling_that_comes_down_refuses_the_next_attempt_and_leaves_this_one_alone(world: World) -> None:
    world.to_running(workerGroups=ROOTS, podSecurity="Privileged")
    world.rules = replace(world.rules, ceilings=Ceilings(host_network=False))
    world.restart_operator()
    world.settle()
    assert world.status.phase == "Running" and len(world.pods) == 1
    world.end_worker(0, 75)
    world.wait(600)
    assert world.reason("Accepted") == ("False", "BeyondCeilings") and not world.pods


def test_plan_larger_than_a_config_map_fails_before_any_pod(world: World) -> None:
    world.submit(env=[{"name": f"V{number}", "value": "x" * 32768} for number in range(40)])  # 1.3 MB
    world.settle()
    assert world.reason("Failed") == ("True", "PlanTooLarge") and not world.pods
    assert "spec.env" in world.condition("Failed").message


def claim(phase: str, storage_class: str = "") -> dict[str, Any]:
    return {"metadata": {"name": "disk"}, "spec": {"storageClassName": storage_class}, "status": {"phase": phase}}


STORAGE = {"storage": {"persistentVolumeClaim": "disk"}}


def test_storage_claim_must_be_there_and_bound(world: World) -> None:
    world.submit(**STORAGE)
    world.settle()
    assert world.reason("Accepted") == ("False", "StorageClaimMissing") and not world.pods
    world.cluster.put(PERSISTENT_VOLUME_CLAIM, KEY.namespace, claim("Pending"))
    world.settle()
    assert world.reason("Accepted") == ("False", "StorageClaimNotBound") and not world.pods
    world.cluster.edit(PERSISTENT_VOLUME_CLAIM, KEY.namespace, "disk", status={"phase": "Bound"})
    world.settle()
    assert world.reason("Accepted") == ("True", "Valid") and len(world.pods) == 1


def test_claim_that_waits_for_a_pod_gets_one(world: World) -> None:
    fast = {"metadata": {"name": "fast"}, "volumeBindingMode": "WaitForFirstConsumer"}
    world.cluster.put(STORAGE_CLASS, None, fast)
    world.cluster.put(PERSISTENT_VOLUME_CLAIM, KEY.namespace, claim("Pending", "fast"))
    world.submit(**STORAGE)
    world.settle()
    assert len(world.pods) == 1


def test_code_must_hold_the_modules_that_the_job_names(world: World) -> None:
    world.submit(code={"configMap": "mine"})
    world.settle()
    assert world.reason("Accepted") == ("False", "CodeMissing")
    world.cluster.put(CONFIG_MAP, KEY.namespace, {"metadata": {"name": "mine"}, "data": {"other.py": ""}})
    world.settle()
    message = world.condition("Accepted").message
    assert "my_rewards.py" in message and "other.py" in message and not world.pods
    world.cluster.edit(CONFIG_MAP, KEY.namespace, "mine", data={"my_rewards.py": ""})
    world.settle()
    assert len(world.pods) == 1


def test_code_must_hold_the_modules_of_the_algorithm_too(world: World) -> None:
    algorithm = {**SPEC["algorithm"], "loss": {"name": "my_losses:squared"}}
    world.cluster.put(CONFIG_MAP, KEY.namespace, {"metadata": {"name": "mine"}, "data": {"my_rewards.py": ""}})
    world.submit(code={"configMap": "mine"}, algorithm=algorithm)
    world.settle()
    assert "my_losses.py" in world.condition("Accepted").message and not world.pods


def test_secret_of_a_variable_must_hold_the_key(world: World) -> None:
    reference = {"secretKeyRef": {"name": "hf", "key": "token"}}
    world.submit(env=[{"name": "HF_TOKEN", "valueFrom": reference}])
    world.settle()
    assert world.reason("Accepted") == ("False", "SecretMissing")
    world.cluster.put(SECRET, KEY.namespace, {"metadata": {"name": "hf"}, "data": {"tokn": ""}, "stringData": {}})
    world.settle()
    assert world.condition("Accepted").message.endswith("Secret hf has no key token")
    world.cluster.edit(SECRET, KEY.namespace, "hf", data={"token": ""})
    world.settle()
    assert len(world.pods) == 1


def test_secret_of_an_object_store_must_be_there(world: World) -> None:
    world.submit(storage={"objectStore": {"uri": "s3://bucket/runs", "secret": "store"}})
    world.settle()
    assert world.reason("Accepted") == ("False", "SecretMissing")
    assert "spec.storage.objectStore.secret" in world.condition("Accepted").message and not world.pods
    world.cluster.put(SECRET, KEY.namespace, {"metadata": {"name": "store"}, "data": {"AWS_REGION": ""}})
    world.settle()
    assert len(world.pods) == 1


@pytest.mark.parametrize(
    ("uri", "data", "said"),
    [
        (
            "s3://bucket/runs",
            None,
            "Secret store has no entry AWS_..., which is how the variables of s3:// begin; name its entries",
        ),
        ("s3://bucket/runs", {"secretKey": "", "accessKey": ""}, "no entry AWS_..."),
        ("gs://bucket/runs", {"AWS_REGION": ""}, "no entry GOOGLE_..., which is how the variables of gs:// begin"),
    ],
)
def test_secret_that_was_made_for_something_else_is_no_secret_of_a_store(
    world: World, uri: str, data: dict[str, str] | None, said: str
) -> None:
    world.cluster.put(
        SECRET, KEY.namespace, {"metadata": {"name": "store"}, **({} if data is None else {"data": data})}
    )
    world.submit(storage={"objectStore": {"uri": uri, "secret": "store"}})
    world.settle()
    assert world.reason("Accepted") == ("False", "SecretMissing") and not world.pods
    assert said in world.condition("Accepted").message


def test_namespace_that_admits_no_such_pods(world: World) -> None:
    world.submit(workerGroups=[{"name": "train", "accelerator": {"profile": "gaudi"}}])
    world.settle()
    assert world.reason("Accepted") == ("False", "PodSecurityConflict") and not world.pods


def test_namespace_that_is_being_deleted_gets_no_new_attempt(world: World) -> None:
    world.to_running()
    world.cluster.edit(NAMESPACE, None, KEY.namespace, metadata={"deletionTimestamp": "2027-01-15T08:00:00Z"})
    world.end_worker(0, 75)
    world.wait(3)
    assert world.reason("Accepted") == ("False", "NamespaceTerminating")
    assert world.status.attempt == 1 and not world.pods


def test_accelerator_without_an_image(world: World) -> None:
    world.submit(workerGroups=[{"name": "train", "accelerator": {"profile": "tpu"}}])
    world.settle()
    assert world.reason("Accepted") == ("False", "ImageUnknown") and not world.pods


def test_pods_of_a_deleted_job_of_the_same_name_are_waited_for(world: World) -> None:
    world.to_running()
    world.cluster.remove(RLJOB, world.job)
    world.submit()
    world.settle()
    assert world.reason("Scheduled") == ("False", "PredecessorEnding")
    assert names(world.pods) == ["small-train-0-a1"]
    world.wait(1)
    assert world.status.attempt == 1 and len(world.pods) == 1


def refusing(error: type[ApiError], verb: str, kind: ResourceKind, message: str) -> Any:
    def refuse(asked: str, of: ResourceKind, name: str) -> ApiError | None:
        return error(verb, kind, KEY.namespace, message) if (asked, of) == (verb, kind) else None

    return refuse


@pytest.mark.parametrize(
    ("error", "reason"), [(QuotaExceeded, "QuotaExceeded"), (Forbidden, "Forbidden"), (Rejected, "Rejected")]
)
def test_pods_that_are_refused_leave_no_half_gang(world: World, error: type[ApiError], reason: str) -> None:
    def refuse(verb: str, kind: ResourceKind, name: str) -> ApiError | None:
        is_second = (verb, kind) == ("create", POD) and "train-1" in name
        return error(verb, kind, KEY.namespace, "exceeded quota: few") if is_second else None

    world.cluster.refuse = refuse
    world.submit(**TWO_PODS)
    world.settle()
    assert world.reason("Scheduled") == ("False", reason) and not world.pods
    assert (
        "few" in world.condition("Scheduled").message
        and "create pods in namespace team" in world.condition("Scheduled").message
    )
    world.wait(1)
    assert world.reason("Scheduled") == ("False", reason), "it is known while the next attempt waits"
    world.cluster.refuse = lambda verb, kind, name: None
    world.wait(10)
    assert len(world.pods) == 2 and world.status.restarts == 0


FEW_PODS = {"metadata": {"name": "few"}, "status": {"hard": {"pods": "1"}, "used": {"pods": "0"}}}


def test_a_gang_that_no_quota_has_room_for_is_not_begun(world: World) -> None:
    quota = world.cluster.put(RESOURCE_QUOTA, KEY.namespace, FEW_PODS)
    world.submit(**TWO_PODS)
    world.settle()
    assert world.reason("Accepted") == ("False", "QuotaExceeded") and world.status.attempt == 0
    assert "0 of 1 pods are used" in world.condition("Accepted").message
    assert ("create", "Pod", "small-train-0-a1") not in world.cluster.requests
    world.cluster.remove(RESOURCE_QUOTA, quota)
    world.wait(15)
    assert len(world.pods) == 2 and world.status.attempt == 1


def test_quotas_that_may_not_be_read_are_left_to_the_api_server(world: World) -> None:
    world.cluster.put(RESOURCE_QUOTA, KEY.namespace, FEW_PODS)
    world.cluster.refuse = refusing(Forbidden, "list", RESOURCE_QUOTA, "cannot list resource resourcequotas")
    world.to_running(**TWO_PODS)


def test_what_refuses_a_pod_of_a_group_is_met_before_the_others_are_made(world: World) -> None:
    def refuse(verb: str, kind: ResourceKind, name: str) -> ApiError | None:
        is_refused = (verb, kind) == ("create", POD) and "rollout" in name
        return Rejected(verb, kind, KEY.namespace, "maximum memory usage per Pod is 1Gi") if is_refused else None

    world.cluster.refuse = refuse
    world.submit(workerGroups=[{"name": "train", "replicas": 4}, {"name": "rollout", "replicas": 4}])
    world.settle()
    made = [name for verb, kind, name in world.cluster.done if (verb, kind) == ("create", "Pod")]
    assert len(made) <= 1 and not world.pods and world.reason("Scheduled") == ("False", "Rejected")


def test_an_operator_that_may_not_read_secrets_makes_them_all_the_same(world: World) -> None:
    world.cluster.refuse = refusing(Forbidden, "get", SECRET, "cannot get resource secrets")
    world.to_running(dataBuffer={"tls": True})
    assert {"small-token", "small-tls-a1"} <= set(names(world.cluster.all(SECRET, KEY.namespace)))
    world.end_worker(0, 75)
    world.wait(60)
    world.run_pods()
    world.settle()
    assert world.status.phase == "Running" and world.status.attempt == 2


def test_outage_is_for_the_queue_to_retry(world: World) -> None:
    world.cluster.refuse = refusing(Unavailable, "create", POD, "no answer")
    world.submit(**TWO_PODS)
    with pytest.raises(Unavailable):
        world.settle()
    world.cluster.refuse = lambda verb, kind, name: None
    world.settle()
    assert names(world.pods) == ["small-train-0-a1", "small-train-1-a1"]


ERRORS = [Forbidden, NotFound, Rejected, QuotaExceeded, Unavailable, Gone]
REQUESTS = [
    ("create", POD),
    ("create", SERVICE),
    ("create", SECRET),
    ("get", NAMESPACE),
    ("get", CONFIG_MAP),
    ("list", POD),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
@pytest.mark.parametrize(("verb", "kind"), REQUESTS, ids=str)
def test_whatever_the_cluster_answers_is_said_and_got_over(
    world: World, verb: str, kind: ResourceKind, error: type[ApiError]
) -> None:
    """A missing CRD, a webhook that fails, a right that is not there."""
    world.cluster.refuse = refusing(error, verb, kind, "the server's own words")
    world.submit(code={"configMap": "mine"})
    world.cluster.put(CONFIG_MAP, KEY.namespace, {"metadata": {"name": "mine"}, "data": {"my_rewards.py": ""}})
    for _ in range(12):
        with contextlib.suppress(error):
            world.reconcile()
        world.clock.now += 1
    if not world.pods:
        said = {condition.message for condition in world.status.conditions}
        assert any("the server's own words" in message for message in said), said
    world.cluster.refuse = lambda verb, kind, name: None
    for _ in range(3):
        world.wait(200)
    assert len(world.pods) == 1 and world.reason("Degraded") == ("False", "AsExpected")
    assert world.status.restarts == 0


def test_what_merely_fails_gives_no_attempt_up(world: World) -> None:
    world.cluster.refuse = refusing(Unavailable, "create", POD, "a webhook does not answer")
    world.submit(**TWO_PODS)
    for _ in range(5):
        with pytest.raises(Unavailable):
            world.reconcile()
    assert world.status.attempt == 1 and world.reason("Degraded") == ("True", "ClusterFails")
    assert "create pods in namespace team: a webhook does not answer" in world.condition("Degraded").message
    world.cluster.refuse = lambda verb, kind, name: None
    world.settle()
    assert world.reason("Degraded") == ("False", "AsExpected") and world.status.attempt == 1


def test_bug_of_ours_is_said_of_the_job_it_was_met_at() -> None:
    def select(context: JobContext) -> GangProvider:
        raise KeyError("worker")

    world = World(select=select)
    world.submit()
    for _ in range(3):
        with pytest.raises(KeyError):
            world.reconcile()
    assert world.reason("Degraded") == ("True", "OperatorError")
    assert world.condition("Degraded").message == "KeyError: 'worker'"
    assert len(world.cluster.events("OperatorError")) == 1
    world.select = lambda context: Ungrouped()
    world.restart_operator()
    world.settle()
    assert len(world.pods) == 1 and world.reason("Degraded")[0] == "False"


@pytest.mark.parametrize(
    "container",
    [
        {"name": "worker", "resources": None},
        {"name": "worker", "resources": {"requests": None}},
        {"name": "worker", "resources": {"requests": {"cpu": "100u"}}},
    ],
)
def test_template_with_what_is_empty_or_odd_runs(world: World, container: dict[str, Any]) -> None:
    group = {"name": "train", "template": {"metadata": None, "spec": {"containers": [container], "volumes": None}}}
    world.submit(workerGroups=[group])
    world.settle()
    assert len(world.pods) == 1 and "null" not in json.dumps(world.pods[0]["spec"])


@pytest.mark.parametrize("name", ["worker", "logger"])
def test_capabilities_that_are_taken_off_a_template_are_a_matter_of_pod_security(world: World, name: str) -> None:
    container = {"name": name, "image": "busybox", "resources": None, "securityContext": {"capabilities": None}}
    world.submit(workerGroups=[{"name": "train", "template": {"spec": {"containers": [container]}}}])
    world.settle()
    assert world.reason("Accepted") == ("False", "PodSecurityConflict")
    assert f"container {name} does not drop ALL capabilities" in world.condition("Accepted").message


def test_template_that_is_no_pod_is_refused(world: World) -> None:
    template = {"spec": {"containers": [{"name": "worker", "resources": 5}]}}
    world.submit(workerGroups=[{"name": "train", "template": template}])
    world.settle()
    assert world.reason("Failed") == ("True", "InvalidSpec")
    assert "template.spec.containers[0].resources" in world.condition("Failed").message


def test_status_of_another_version_is_read_as_far_as_it_goes(world: World) -> None:
    """After a roll-back: a reason that nobody knows here, a time that is none, a field that is new."""
    world.to_running()
    world.end_worker(0, 75)
    status = world.job["status"]
    status["lastFailure"]["cause"] = "SomethingNew"
    status["startTime"] = "yesterday"
    status["somethingNew"] = 1
    status["conditions"][0]["lastTransitionTime"] = "2027-01-15 08:00"
    world.cluster.edit(RLJOB, KEY.namespace, KEY.name, status=status)
    world.wait(3)
    world.wait(3)
    assert (world.status.attempt, world.status.counted_restarts) == (2, 1)


def test_end_is_not_forgotten_for_the_sake_of_a_time(world: World) -> None:
    world.to_running()
    world.end_worker(0, 0)
    status = world.job["status"]
    for item in status["conditions"]:
        item["lastTransitionTime"] = "never"
    world.cluster.edit(RLJOB, KEY.namespace, KEY.name, status={**status, "phase": "Strange"})
    world.wait(3)
    assert world.status.phase == "Succeeded" and world.status.attempt == 1


def test_queued_job_whose_profile_is_taken_away_gives_its_place_up() -> None:
    """It has no plan any more, so no adapter either; what it asked of the queue is found by its name."""
    world = World(select=lambda context: FakeQueue())
    world.submit()
    world.settle()
    assert len(world.cluster.all(WORKLOAD_KUEUE)) == 1
    world.rules = replace(world.rules, profiles={})
    world.restart_operator()
    world.settle()
    assert world.reason("Accepted") == ("False", "UnknownProfile")
    assert not world.cluster.all(WORKLOAD_KUEUE)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (r"""{"code": 65, "cause": "ValueError: cannot score '\ud83d'"}""", r"ValueError: cannot score '\ud83d'"),
        ("[" * 4000, "[[[["),
        (f'{{"code": 65, "cause": "no", "step": {10**25}}}', "no"),
    ],
    ids=["half a surrogate pair", "nesting", "a large number"],
)
def test_whatever_last_words_hold_the_job_ends_with_their_cause(world: World, message: str, said: str) -> None:
    world.to_running(**TWO_PODS)
    world.set_pod(world.pods[0], ended(65, message))
    world.wait(0)
    world.wait(3)
    assert world.reason("Failed") == ("True", "BadData")
    assert said in world.condition("Failed").message


def test_a_step_that_no_status_can_hold_is_the_largest_that_one_can(world: World) -> None:
    world.to_running()
    world.progress.answer = progress_of(f'{{"attempt": 1, "totalSteps": {10**25}, "stepSeconds": 1e300}}'.encode())
    world.wait(20)
    world.progress.answer = progress_of(f'{{"attempt": 1, "step": {10**25}}}'.encode())
    world.wait(20)
    assert world.status.progress is not None and world.status.progress.step == 2**63 - 1
    world.set_pod(world.pods[0], ended(0, f'{{"step": {10**25}, "checkpoint": {10**25}}}'))
    world.wait(1)
    assert world.status.phase == "Succeeded"


@pytest.mark.parametrize(
    "spec",
    [
        {"env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "prod-db", "key": "nokey"}}}]},
        {"storage": {"objectStore": {"uri": "s3://bucket/runs", "secret": "prod-db"}}},
    ],
    ids=["a variable", "an object store"],
)
def test_what_is_said_of_a_secret_names_none_of_its_keys(world: World, spec: dict[str, Any]) -> None:
    world.cluster.put(SECRET, KEY.namespace, {"metadata": {"name": "prod-db"}, "data": {"password": ""}})
    world.submit(**spec)
    world.settle()
    assert world.reason("Accepted") == ("False", "SecretMissing")
    assert "password" not in json.dumps(world.job["status"]) + json.dumps(world.cluster.events())
