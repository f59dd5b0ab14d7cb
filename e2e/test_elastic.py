"""Pods of an elastic group on a real cluster: one is killed, the node of another is drained, and nothing is lost.

Not a part of `make e2e`, since two jobs of three pods each want idle cores: RLJOB_E2E_ELASTIC=1 runs it.
"""

import os
from pathlib import Path

import pytest

from e2e.cluster.waiting import wait_until
from e2e.jobs import BYTES, ON_STORAGE, ClusterJob, NamespaceJobs, metrics, small_spec
from e2e.pods import ClusterPod
from rljob_worker.tests.metrics import without_times

pytestmark = pytest.mark.skipif(not os.environ.get("RLJOB_E2E_ELASTIC"), reason="RLJOB_E2E_ELASTIC is not set")

STEPS = 4000
"""More than there is time for: the jobs are deleted."""
GROUPS = [
    {"name": "train", "accelerator": {"profile": "cpu", "count": 1}},
    {"name": "rollout", "accelerator": {"profile": "cpu", "count": 1}, "elastic": {"min": 1, "max": 3}},
]
WORKER = "rljob_worker.runtime"
BY_GUEST = (BYTES, "generators/", "leases/")


def spec(**fields: object) -> dict[str, object]:
    rollout = {"maxResponseTokens": 20, "maxStaleness": 1, "leaseRows": 4}
    elastic = {"workerGroups": GROUPS, "generators": 2, "rollout": rollout, "stop": {"steps": STEPS}}
    data_buffer = {"memory": "160Mi", "deadlineSeconds": 60}
    return small_spec(**{**elastic, "dataBuffer": data_buffer, **ON_STORAGE, **fields})


def pods_of(job: ClusterJob, group: str) -> list[ClusterPod]:
    return [pod for pod in job.pods() if pod.body["metadata"]["labels"].get("rljob.dev/group") == group]


def until_generators(job: ClusterJob, number: int) -> None:
    job.until(f"{number} generators", lambda: job.status.get("generators") == number)


def drain(jobs: NamespaceJobs, job: ClusterJob, node: str) -> None:
    label = f"rljob.dev/job={job.name},rljob.dev/group=rollout"
    jobs.kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", f"--pod-selector={label}", "--force")


def test_guests_that_are_killed_drained_and_scaled_change_nothing(jobs: NamespaceJobs, storage: Path) -> None:
    undisturbed = jobs.apply("undisturbed", spec(generators=1))
    job = jobs.apply("disturbed", spec())
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
    for run in (job, undisturbed):
        run.until_step(step)
    assert (job.status["attempt"], job.status.get("restarts", 0), job.status["generatorsLost"]) == (1, 0, 2)
    assert [pod.uid for pod in pods_of(job, "train")] == [trainer.uid]
    one, other = (without_times(metrics(storage, run.name), *BY_GUEST)[:step] for run in (job, undisturbed))
    assert len(one) == step and one == other
    job.delete()
    job.until_gone()
