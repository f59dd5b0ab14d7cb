"""Pods of an elastic group on a real cluster: one is killed, the node of another is drained, and nothing is lost by it.

Not a part of `make e2e`: RLJOB_E2E_ELASTIC=1 runs it.
"""

import os
from pathlib import Path

import pytest

from e2e.cluster.waiting import wait_until
from e2e.jobs import BYTES, ON_STORAGE, ClusterJob, NamespaceJobs, metrics, small_spec
from e2e.pods import ClusterPod
from rljob_worker.tests.metrics import without_times

pytestmark = pytest.mark.skipif(not os.environ.get("RLJOB_E2E_ELASTIC"), reason="RLJOB_E2E_ELASTIC is not set")

STEPS = 60
GROUPS = [
    {"name": "train", "accelerator": {"profile": "cpu", "count": 1}},
    {"name": "rollout", "accelerator": {"profile": "cpu", "count": 1}, "elastic": {"min": 1, "max": 3}},
]
WORKER = "rljob_worker.runtime"


def spec(**fields: object) -> dict[str, object]:
    rollout = {"maxResponseTokens": 20, "maxStaleness": 1, "leaseRows": 4}
    elastic = {"workerGroups": GROUPS, "generators": 2, "rollout": rollout, "stop": {"steps": STEPS}}
    data_buffer = {"memory": "160Mi", "deadlineSeconds": 60}
    return small_spec(**{**elastic, "dataBuffer": data_buffer, **ON_STORAGE, **fields})


def guests(job: ClusterJob) -> list[ClusterPod]:
    return [pod for pod in job.pods() if pod.body["metadata"]["labels"].get("rljob.dev/group") == "rollout"]


def gang(job: ClusterJob) -> list[str]:
    return [pod.uid for pod in job.pods() if pod.body["metadata"]["labels"].get("rljob.dev/group") == "train"]


def assert_undisturbed(job: ClusterJob) -> None:
    status = job.status
    assert (status["attempt"], status.get("restarts", 0)) == (1, 0), status
    assert status["progress"]["step"] == STEPS


def test_a_guest_that_is_killed_is_replaced_and_the_run_is_that_of_one_that_was_not(
    jobs: NamespaceJobs, storage: Path
) -> None:
    undisturbed = jobs.apply("undisturbed", spec())
    killed = jobs.apply("killed", spec())
    killed.until("two generators", lambda: killed.status.get("generators") == 2)
    killed.until_step(3)
    trainers, victim = gang(killed), guests(killed)[0]
    victim.kill(WORKER)
    killed.until("a loss", lambda: killed.status.get("generatorsLost") == 1)
    killed.until("two generators again", lambda: killed.status.get("generators") == 2)
    assert gang(killed) == trainers and victim.name not in [pod.name for pod in guests(killed)]
    killed.until_succeeded()
    undisturbed.until_succeeded()
    assert_undisturbed(killed)
    assert without_times(metrics(storage, "killed"), BYTES) == without_times(metrics(storage, "undisturbed"), BYTES)


def test_a_node_that_is_drained_takes_guests_and_nothing_else(jobs: NamespaceJobs, storage: Path) -> None:
    job = jobs.apply("drained", spec())
    job.until("two generators", lambda: job.status.get("generators") == 2)
    job.until_step(3)
    (trainer,) = (pod for pod in job.pods() if pod.uid in gang(job))
    node = next((pod.node for pod in guests(job) if pod.node != trainer.node), None)
    assert node is not None, "both nodes have a pod of the group, which is spread"
    label = f"rljob.dev/job={job.name},rljob.dev/group=rollout"
    jobs.kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", f"--pod-selector={label}", "--force")
    try:
        job.until("a loss", lambda: job.status.get("generatorsLost", 0) >= 1)
        job.until("two generators elsewhere", lambda: job.status.get("generators") == 2)
        assert {pod.node for pod in guests(job) if pod.is_running} == {trainer.node}
        job.until_succeeded()
        assert_undisturbed(job)
    finally:
        jobs.kubectl("uncordon", node)


def test_kubectl_scale_adds_and_removes_guests(jobs: NamespaceJobs, storage: Path) -> None:
    job = jobs.apply("scaled", spec(stop={"steps": 400}))
    job.until("two generators", lambda: job.status.get("generators") == 2)
    jobs.kubectl("scale", f"rljob/{job.name}", "--replicas=3")
    job.until("three generators", lambda: job.status.get("generators") == 3)
    jobs.kubectl("scale", f"rljob/{job.name}", "--replicas=1")
    wait_until(lambda: len(guests(job)) == 1, "one generator", 120, interval_seconds=0.3)
    assert guests(job)[0].body["metadata"]["labels"]["rljob.dev/host-index"] == "0"
    assert job.status["generatorsLost"] == 0 and job.status["attempt"] == 1
