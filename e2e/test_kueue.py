"""Jobs in a real Kueue: quota, preemption, and nothing held on any way out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import KubeCluster, kueue
from e2e.cluster.waiting import wait_until
from e2e.jobs import ON_STORAGE, ClusterJob, NamespaceJobs, metrics, small_spec
from e2e.operator import InstalledOperator

API = "kueue.x-k8s.io/v1beta1"
QUOTA = [{"name": "cpu", "nominalQuota": "100m"}, {"name": "memory", "nominalQuota": "8Gi"}]
"""One pod of e2e/values.yaml asks for 70m, so one job of one pod fits, and two do not."""
QUEUED = {"scheduling": {"provider": "Kueue", "queue": "team"}, **ON_STORAGE}


@pytest.fixture(scope="module")
def queues(cluster: KubeCluster, operator: InstalledOperator, kueue_image: Future[Path]) -> Iterator[None]:
    """Kueue, one ClusterQueue with room for one pod, and two priorities."""
    kueue_image.result()
    kueue.install(cluster)
    for manifest in _cluster_objects():
        cluster.apply(manifest)
    operator.kill()  # what the cluster serves is read at the start, and every minute
    yield
    cluster.kubectl("delete", "clusterqueues,resourceflavors,workloadpriorityclasses", "--all")
    kueue.uninstall(cluster)


@pytest.fixture
def queued(queues: None, jobs: NamespaceJobs, storage: Path) -> NamespaceJobs:
    """A namespace with a LocalQueue `team`."""
    about = {"name": "team", "namespace": jobs.namespace}
    jobs.cluster.apply(_manifest("LocalQueue", about, {"clusterQueue": "one-pod"}))
    return jobs


def test_job_waits_for_quota_which_suspended_and_deleted_ones_give_back(queued: NamespaceJobs, storage: Path) -> None:
    first = queued.apply("first", small_spec(**{**QUEUED, "stop": {"steps": 100}}))
    first.until_step(3)
    second = queued.apply("second", small_spec(**{**QUEUED, "stop": {"steps": 500}}))
    until_waiting(second)
    first.patch(suspend=True)
    first.until_phase("Suspended")
    second.until_phase("Running")
    first.patch(suspend=False)
    until_waiting(first)
    second.delete()
    first.until_succeeded(180)
    assert first.status["attempt"] == 2 and first.status["restarts"] == 0
    assert [row["step"] for row in metrics(storage, "first")][-1] == 100
    until_finished(queued, {"rljob-first"})
    assert len(workloads(queued)) == 1


def test_preempted_job_goes_on_from_its_checkpoint(queued: NamespaceJobs, storage: Path) -> None:
    low, high = ({"kueue.x-k8s.io/priority-class": name} for name in ("low", "high"))
    modest = queued.apply("modest", small_spec(**{**QUEUED, "stop": {"steps": 100}}), labels=low)
    modest.until_step(3)
    urgent = queued.apply("urgent", small_spec(**QUEUED), labels=high)
    urgent.until_succeeded(180)
    assert "Evicted" in queued.events("modest")
    modest.until_succeeded(180)
    status = modest.status
    assert status["attempt"] == 2 and status["countedRestarts"] == 0
    assert [row["step"] for row in metrics(storage, "modest")][-1] == 100
    until_finished(queued, {"rljob-modest", "rljob-urgent"})


def test_model_beside_a_job_is_counted(queued: NamespaceJobs) -> None:
    """Its pod asks for 50m, and with the gang's 70m that is more than there is."""
    services = [{"name": "grader", "run": "rljob_worker.services:reward_model", "options": {"path": "none"}}]
    job = queued.apply("judged", small_spec(**QUEUED, services=services))
    job.until("quota said to be short", lambda: "quota" in job.condition("QuotaReserved").get("message", ""))
    (workload,) = workloads(queued)
    assert [item["name"] for item in workload["spec"]["podSets"]] == ["train", "service-grader"]
    assert job.condition("QuotaReserved")["reason"] == "QuotaPending" and not job.pods()


def workloads(jobs: NamespaceJobs) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = json.loads(jobs.kubectl("get", "workloads.kueue.x-k8s.io", "-o", "json"))["items"]
    return result


def until_waiting(job: ClusterJob) -> None:
    """For quota, without pods."""
    job.until("waiting for quota", lambda: job.condition("QuotaReserved").get("reason") == "QuotaPending")
    assert not job.pods()


def until_finished(jobs: NamespaceJobs, names: set[str]) -> None:
    """These Workloads, and no other, hold no quota any more; the operator says so after the job's own status."""

    def finished() -> set[str]:
        return {workload["metadata"]["name"] for workload in workloads(jobs) if _is_finished(workload)}

    wait_until(lambda: finished() == names, f"the Workloads {', '.join(sorted(names))} have finished", 60)


def _is_finished(workload: dict[str, Any]) -> bool:
    conditions = workload.get("status", {}).get("conditions", [])
    return any(condition["type"] == "Finished" and condition["status"] == "True" for condition in conditions)


def _cluster_objects() -> Iterator[dict[str, Any]]:
    group = {"coveredResources": ["cpu", "memory"], "flavors": [{"name": "plain", "resources": QUOTA}]}
    spec = {
        "namespaceSelector": {},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [group],
    }
    yield _manifest("ResourceFlavor", {"name": "plain"}, {})
    yield _manifest("ClusterQueue", {"name": "one-pod"}, spec)
    for name, value in (("low", 10), ("high", 1000)):
        about = {"apiVersion": API, "kind": "WorkloadPriorityClass", "metadata": {"name": name}}
        yield {**about, "value": value, "description": name}


def _manifest(kind: str, metadata: dict[str, str], spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": API, "kind": kind, "metadata": metadata, "spec": spec}
