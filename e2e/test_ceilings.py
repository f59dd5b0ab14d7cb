"""What an administrator's ceilings keep out: jobs, by the operator; pods of jobs and jobs, by the API server itself."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.cluster import KubeCluster
from e2e.cluster.commands import CommandFailed
from e2e.cluster.waiting import wait_until
from e2e.jobs import NamespaceJobs, small_spec
from e2e.operator import InstalledOperator
from e2e.test_bad_input import until_refused

FREE = "free"
"""A namespace without a Pod Security Standard of its own."""
ORDINARY: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "mine", "namespace": FREE, "labels": {"app.kubernetes.io/managed-by": "rljob-operator"}},
    "spec": {
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": "worker",
                "image": "localhost/rljob-worker-cpu:dev",
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            }
        ],
    },
}
ETC = {"volumes": [{"name": "node", "hostPath": {"path": "/etc"}}]}
DATABASE = {"volumes": [{"name": "node", "hostPath": {"path": "/database"}}]}
PINNED = {"image": "localhost/rljob-worker-cpu@sha256:" + 64 * "0"}
DATA = {"volumes": [{"name": "node", "hostPath": {"path": "/data/x"}}]}


@pytest.fixture(scope="module")
def namespace(cluster: KubeCluster) -> Iterator[str]:
    cluster.kubectl("create", "namespace", FREE)
    yield FREE
    cluster.kubectl("delete", "namespace", FREE, "--wait=false")


@pytest.fixture(scope="module")
def lists(operator: InstalledOperator, namespace: str) -> Iterator[None]:
    """The chart with every ceiling but the standard."""
    ceilings = {
        "hostNetwork": False, "privileged": False, "hostPaths": ["/data"], "images": ["localhost/"],
        "serviceAccounts": ["default"], "priorityClasses": [], "accelerators": 1, "apiTokens": False, "secrets": [],
        "tolerations": [], "runtimeClasses": [], "schedulers": [],
    }  # fmt: skip
    operator.install("--set-json", f"settings.ceilings={json.dumps(ceilings)}")
    yield
    operator.install()


@pytest.fixture(scope="module")
def standard(operator: InstalledOperator, namespace: str) -> Iterator[None]:
    """The chart with that alone; asked for by tests after those of `lists`."""
    operator.install("--set", "settings.ceilings.podSecurity=Restricted")
    yield
    operator.install()


@pytest.fixture(scope="module")
def digests(operator: InstalledOperator, namespace: str) -> Iterator[None]:
    """The chart that asks for them alone; asked for by the last test here."""
    operator.install("--set", "settings.ceilings.imageDigests=true")
    yield
    operator.install()


def pod(container: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """The ordinary pod with fields of its spec and of its container replaced."""
    made = copy.deepcopy(ORDINARY)
    made["spec"] |= spec
    made["spec"]["containers"][0] |= container or {}
    return made


def answer(cluster: KubeCluster, manifest: dict[str, Any]) -> str:
    """What the API server says to a pod that it is only asked about."""
    try:
        return cluster.kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(manifest))
    except CommandFailed as refused:
        return str(refused)


def test_a_job_and_pods_below_the_lists_are_admitted(lists: None, cluster: KubeCluster, jobs: NamespaceJobs) -> None:
    assert "created" in answer(cluster, pod()) and "created" in answer(cluster, pod(**DATA))
    job = jobs.apply("below", small_spec())
    wait_until(lambda: len(job.pods()) == 1, "the pod of a job below the ceilings", 60)


def test_a_job_beyond_a_ceiling_gets_no_pods(lists: None, jobs: NamespaceJobs) -> None:
    group = {"name": "train", "template": {"spec": {"hostNetwork": True}}}
    spec = small_spec(workerGroups=[group], podSecurity="Privileged")
    message = until_refused(jobs.apply("beyond", spec), "BeyondCeilings")
    assert "worker group train: hostNetwork: true" in message


def test_the_api_server_counts_accelerators(lists: None, jobs: NamespaceJobs) -> None:
    group = {"name": "train", "replicas": 2, "accelerator": {"profile": "ascend-test", "count": 1}}
    said = jobs.refused("many", small_spec(workerGroups=[group]))
    assert "2 accelerators, and a job may have 1 (accelerators)" in said


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        (pod(hostNetwork=True), "(hostNetwork)"),
        (pod({"securityContext": {"privileged": True}}), "(privileged)"),
        (pod(**ETC), "allowed are /data (hostPaths)"),
        (pod(**DATABASE), "host paths /database: allowed are /data (hostPaths)"),
        (pod({"image": "elsewhere.example/x:1"}), "allowed are localhost/ (images)"),
        (pod(priorityClassName="system-node-critical"), "(priorityClasses)"),
        (pod(automountServiceAccountToken=None), "(apiTokens)"),
        (pod(tolerations=[{"operator": "Exists"}]), "(tolerations)"),
        (pod(nodeName="node1"), "nodeName: fields that pods may not have here (extraFields)"),
    ],
    ids=["network", "privileged", "etc", "database", "image", "priority", "token", "toleration", "node"],
)
def test_the_api_server_denies_a_pod_beyond_a_list(
    lists: None, cluster: KubeCluster, manifest: dict[str, Any], words: str
) -> None:
    assert words in answer(cluster, manifest)


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        (pod(hostPID=True), "hostPID"),
        (pod(**ETC), "host paths /etc"),
        (pod({"securityContext": {"allowPrivilegeEscalation": True}}), "allowPrivilegeEscalation"),
        (pod({"ports": [{"containerPort": 80, "hostPort": 80}]}), "hostPort"),
        (pod(securityContext={"runAsNonRoot": True}), "seccomp"),
        (pod(securityContext={"seccompProfile": {"type": "RuntimeDefault"}}), "runAsNonRoot"),
    ],
    ids=["pid", "path", "escalation", "port", "seccomp", "root"],
)
def test_the_api_server_denies_a_pod_beyond_the_standard(
    standard: None, cluster: KubeCluster, manifest: dict[str, Any], words: str
) -> None:
    assert words in answer(cluster, manifest)


def test_a_job_and_pods_below_the_standard_are_admitted(
    standard: None, cluster: KubeCluster, jobs: NamespaceJobs
) -> None:
    assert "created" in answer(cluster, pod())
    job = jobs.apply("below", small_spec())
    wait_until(lambda: len(job.pods()) == 1, "the pod of a job below the standard", 60)


def test_the_api_server_denies_a_pod_whose_image_may_change(digests: None, cluster: KubeCluster) -> None:
    assert "created" in answer(cluster, pod(PINNED))
    assert "localhost/rljob-worker-cpu:dev: not all are named by digest" in answer(cluster, pod())
