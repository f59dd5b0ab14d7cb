"""Pods of an elastic group on a real cluster: one is killed, the node of another is drained, and nothing is lost."""

from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.waiting import wait_until
from e2e.jobs import BYTES, ON_STORAGE, ClusterJob, NamespaceJobs, metrics, small_spec
from e2e.pods import ClusterPod
from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.tests.metrics import without_times

pytestmark = [pytest.mark.slow, pytest.mark.timeout(30 * TEST_TIMEOUT_SECONDS)]
"""Every wait has a limit of its own; there are nine starts of pods."""
STEPS = 4000
"""More than there is time for: the jobs are deleted."""
GROUPS = [
    {"name": "train", "accelerator": {"profile": "cpu", "count": 1}},
    {"name": "rollout", "accelerator": {"profile": "cpu", "count": 1}, "elastic": {"min": 1, "max": 3}},
]
WORKER = "rljob_worker.runtime"
BY_GUEST = (BYTES, "generators/", "leases/")
PACE = """
import time


def pace(row):
    if row["row_id"] % 4 == 0:
        time.sleep({seconds})
    return 0.0
"""
"""A reward that makes every lease last, so that training leaves processors to the pods that start beside it."""


def paced_job(jobs: NamespaceJobs, name: str, seconds: float, generators: int) -> ClusterJob:
    """seconds: of every lease."""
    jobs.kubectl("create", "configmap", name, f"--from-literal=pace.py={PACE.format(seconds=seconds)}")
    rewards = [
        {"name": "correct", "run": "rljob_worker.rewards:final_number", "column": "answer"},
        {"name": "pace", "run": "pace:pace", "weight": 0.0, "timeoutSeconds": 600},
    ]
    fields = {
        "workerGroups": GROUPS,
        "generators": generators,
        "rollout": {"maxResponseTokens": 20, "maxStaleness": 1, "leaseRows": 4},
        "rewards": rewards,
        "code": {"configMap": name},
        "stop": {"steps": STEPS},
        "dataBuffer": {"memory": "160Mi", "deadlineSeconds": 120},
    }
    return jobs.apply(name, small_spec(**fields, **ON_STORAGE))


def pods_of(job: ClusterJob, group: str) -> list[ClusterPod]:
    return [pod for pod in job.pods() if pod.body["metadata"]["labels"].get("rljob.dev/group") == group]


def until_generators(job: ClusterJob, number: int) -> None:
    """However slowly their containers start, as long as they do."""
    job.until(f"{number} generators", lambda: job.status.get("generators") == number, 180, lambda: starting(job))


def starting(job: ClusterJob) -> list[Any]:
    """How far the pods of a job are."""
    fields = [(pod.name, pod.body["status"]) for pod in job.pods()]
    lists = ("initContainerStatuses", "containerStatuses")
    states = [
        (name, item["name"], *item["state"], item["ready"])
        for name, status in fields
        for of in lists
        for item in status.get(of, [])
    ]
    return sorted(states)


def drain(jobs: NamespaceJobs, job: ClusterJob, node: str) -> None:
    label = f"rljob.dev/job={job.name},rljob.dev/group=rollout"
    jobs.kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", f"--pod-selector={label}", "--force")


def suspended_and_resumed(job: ClusterJob) -> int:
    """A step that was trained after that. The checkpoint is of a step for which generators stayed."""
    before = job.step
    job.patch(suspend=True)
    job.until_phase("Suspended")
    assert not job.pods()
    assert (job.status["generators"], job.condition("GeneratorsReady")["reason"]) == (0, "GeneratorsStopped")
    job.patch(suspend=False)
    until_generators(job, 1)
    step = job.step + 2
    job.until_step(step, 180)
    assert min(job.resumed_from()) > before
    return step


def test_guests_that_are_killed_drained_and_scaled_change_nothing(jobs: NamespaceJobs, storage: Path) -> None:
    job = paced_job(jobs, "disturbed", 1.0, generators=2)
    until_generators(job, 2)
    job.until_step(3)
    (trainer,), victim = pods_of(job, "train"), pods_of(job, "rollout")[0]
    victim.kill(WORKER)
    job.until("a loss", lambda: job.status.get("generatorsLost") == 1)
    until_generators(job, 2)
    assert victim.name not in [pod.name for pod in pods_of(job, "rollout")]
    node = next((pod.node for pod in pods_of(job, "rollout") if pod.node != trainer.node), None)
    assert node is not None, "both nodes have a pod of the group, which is spread"
    drain(jobs, job, node)
    try:
        job.until("another loss", lambda: job.status.get("generatorsLost") == 2)
        until_generators(job, 2)
        assert {pod.node for pod in pods_of(job, "rollout") if pod.is_running} == {trainer.node}
    finally:
        jobs.kubectl("uncordon", node)
    jobs.kubectl("scale", f"rljob/{job.name}", "--replicas=1")
    wait_until(lambda: len(pods_of(job, "rollout")) == 1, "one generator", 120, interval_seconds=0.3)
    assert pods_of(job, "rollout")[0].body["metadata"]["labels"]["rljob.dev/host-index"] == "0"
    step = job.step + 2
    job.until_step(step)
    assert (job.status["attempt"], job.status.get("restarts", 0), job.status["generatorsLost"]) == (1, 0, 2)
    assert [pod.uid for pod in pods_of(job, "train")] == [trainer.uid]
    step = suspended_and_resumed(job)
    job.patch(
        suspend=True
    )  # pods of a job that is deleted wait for rows of generators that are gone, for all their grace
    job.until_phase("Suspended")
    job.delete()
    undisturbed = paced_job(jobs, "undisturbed", 0.0, generators=1)
    undisturbed.until_step(step, 300)
    one, other = (without_times(metrics(storage, run.name), *BY_GUEST)[:step] for run in (job, undisturbed))
    assert len(one) == step and one == other
