"""What cannot run says why, in the words of `rljob validate`, before it takes an accelerator."""

import copy
import json
from pathlib import Path

import pytest
import yaml

from e2e.cluster import KubeCluster
from e2e.cluster.waiting import wait_until
from e2e.jobs import ON_STORAGE, ClusterJob, NamespaceJobs, small_spec
from e2e.operator import RELEASE


def until_refused(job: ClusterJob, reason: str) -> str:
    """Wait for Accepted=False with this reason; returns its message."""
    wait_until(lambda: job.condition("Accepted").get("reason") == reason, f"{job.name}: {reason}", 60, 0.3)
    accepted = job.condition("Accepted")
    assert accepted["status"] == "False"
    assert not job.pods()
    return str(accepted["message"])


def test_misspelt_field_is_refused_by_kubectl(jobs: NamespaceJobs) -> None:
    said = jobs.refused("typo", small_spec(traning={"learningRate": 1.0e-4}))
    assert 'unknown field "spec.traning"' in said


def test_name_too_long_is_refused_with_the_limit(jobs: NamespaceJobs) -> None:
    assert "40" in jobs.refused("a" * 41, small_spec())


def test_cycle_is_refused_in_the_words_of_the_cli(jobs: NamespaceJobs) -> None:
    stages = [
        {"name": "rollout", "run": "Rollout", "models": ["actor"], "after": ["update"]},
        {"name": "reward", "run": "Reward", "after": ["rollout"]},
        {"name": "advantage", "run": "Advantage", "after": ["reward"]},
        {"name": "update", "run": "UpdatePolicy", "models": ["actor"], "after": ["advantage"]},
    ]
    job = jobs.apply("cycle", small_spec(dag={"stages": stages}))
    message = until_refused(job, "InvalidDAG")
    assert "rollout" in message and "update" in message


def test_impossible_plan_is_refused(jobs: NamespaceJobs) -> None:
    job = jobs.apply("uneven", small_spec(training={"miniBatchRows": 5, "precision": "Float32"}))
    assert "miniBatchRows" in until_refused(job, "InvalidSpec")


def test_unknown_profile_lists_the_known(jobs: NamespaceJobs) -> None:
    group = {"name": "train", "accelerator": {"profile": "nvidia-h1000", "count": 1}}
    message = until_refused(jobs.apply("profile", small_spec(workerGroups=[group])), "UnknownProfile")
    assert "nvidia-h100" in message


def test_missing_storage_claim_is_named_before_any_pod(jobs: NamespaceJobs) -> None:
    message = until_refused(jobs.apply("claim", small_spec(**ON_STORAGE)), "StorageClaimMissing")
    assert "storage" in message and jobs.namespace in message


def test_code_without_the_module_is_named_before_any_pod(jobs: NamespaceJobs) -> None:
    jobs.kubectl("create", "configmap", "my-code", "--from-literal=other.py=x = 1")
    rewards = [{"name": "mine", "run": "my_rewards:correct", "column": "answer"}]
    job = jobs.apply("code", small_spec(code={"configMap": "my-code"}, rewards=rewards))
    message = until_refused(job, "CodeMissing")
    assert "my_rewards" in message and "other" in message


def test_profile_that_needs_more_than_the_namespace_allows(jobs: NamespaceJobs) -> None:
    """First the job must say that it wants more than the restricted standard; then the namespace must allow it."""
    group = {"name": "train", "accelerator": {"profile": "gaudi", "count": 1}}
    said = until_refused(jobs.apply("unsaid", small_spec(workerGroups=[group])), "PodSecurityConflict")
    assert "SYS_NICE" in said and "set spec.podSecurity to Privileged" in said
    spec = small_spec(workerGroups=[group], podSecurity="Privileged")
    said = until_refused(jobs.apply("said", spec), "PodSecurityConflict")
    assert jobs.namespace in said and "restricted" in said


def test_image_that_cannot_be_pulled_is_a_condition(jobs: NamespaceJobs) -> None:
    template = {"spec": {"containers": [{"name": "worker", "image": "localhost/absent:1"}]}}
    group = {"name": "train", "accelerator": {"profile": "cpu", "count": 1}, "template": template}
    job = jobs.apply("image", small_spec(workerGroups=[group]))
    job.until("the image named", lambda: "localhost/absent:1" in str(job.status.get("conditions")))


def test_exceeded_quota_is_a_condition(jobs: NamespaceJobs) -> None:
    jobs.kubectl("create", "quota", "few", "--hard=pods=0")
    job = jobs.apply("quota", small_spec())
    job.until("the quota named", lambda: "few" in str(job.status.get("conditions")))
    jobs.kubectl("delete", "quota", "few")
    job.until_succeeded()


def test_child_of_the_same_name_that_is_not_ours_is_named(jobs: NamespaceJobs) -> None:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "conflict"},
        "spec": {"ports": [{"port": 1}]},
    }
    jobs.kubectl("apply", "-f", "-", input=yaml.safe_dump(service))
    job = jobs.apply("conflict", small_spec())
    job.until("the conflict named", lambda: "NameConflict" in str(job.status.get("conditions")))
    assert not job.pods()


def test_service_edited_by_hand_is_healed(jobs: NamespaceJobs) -> None:
    job = jobs.apply("healed", small_spec(stop={"steps": 200}))
    job.until_phase("Running")
    change = '{"spec":{"publishNotReadyAddresses":false}}'
    jobs.kubectl("patch", "service", "healed", "--type=merge", "-p", change)
    question = ("get", "service", "healed", "-o", "jsonpath={.spec.publishNotReadyAddresses}")
    job.until("the service as it was", lambda: jobs.kubectl(*question) == "true")


def test_status_edited_by_hand_is_healed(jobs: NamespaceJobs) -> None:
    """The pods show what is true: nothing is restarted."""
    job = jobs.apply("forged", small_spec(stop={"steps": 200}))
    job.until_phase("Running")
    pod = job.pods()[0].uid
    forged = '{"status":{"phase":"Succeeded","attempt":0,"ready":"7/7"}}'
    jobs.kubectl("patch", "rlj", "forged", "--subresource=status", "--type=merge", "-p", forged)
    job.until("the status as it was", lambda: (job.phase, job.status.get("attempt")) == ("Running", 1))
    assert job.status["ready"] == "1/1" and [pod.uid for pod in job.pods()] == [pod]


def test_right_that_the_operator_lacks_is_named(jobs: NamespaceJobs, cluster: KubeCluster) -> None:
    """Somebody took a verb away; once it is back, the job runs."""
    role = json.loads(cluster.kubectl("get", "clusterrole", RELEASE, "-o", "json"))
    del role["metadata"]["resourceVersion"]
    less = copy.deepcopy(role)
    maps = next(rule for rule in less["rules"] if "configmaps" in rule["resources"])
    maps["verbs"].remove("create")
    cluster.kubectl("replace", "-f", "-", input=json.dumps(less))
    try:
        job = jobs.apply("powerless", small_spec())
        job.until("the right named", lambda: "create configmaps" in str(job.status.get("conditions")))
        assert jobs.namespace in str(job.status["conditions"]) and not job.pods()
    finally:
        cluster.kubectl("replace", "-f", "-", input=json.dumps(role))
    job.until_succeeded()


@pytest.mark.parametrize("code", [65])
def test_bad_data_is_final_and_named(jobs: NamespaceJobs, storage: Path, code: int) -> None:
    (storage / "arithmetic" / "train.parquet").write_bytes(b"not parquet")
    job = jobs.apply("data", small_spec(**ON_STORAGE))
    job.until_phase("Failed")
    failure = job.status["lastFailure"]
    assert failure["exitCode"] == code and "train.parquet" in failure["message"]
    assert job.status["attempt"] == 1
