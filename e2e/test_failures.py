"""Whatever dies, the gang goes on from its last checkpoint, and ends where an undisturbed run ends."""

import json
from pathlib import Path

import pytest

from e2e.cluster import KubeCluster
from e2e.jobs import BYTES, ON_STORAGE, ClusterJob, NamespaceJobs, metrics, small_spec
from e2e.operator import InstalledOperator
from rljob_worker.tests.metrics import without_times

STEPS = 60
"""Of 0.1 s each; what the status says of them is up to a second old."""
WORKER, BUFFER = "rljob_worker.runtime", "rljob_worker.databuffer"


def spec(**fields: object) -> dict[str, object]:
    return small_spec(**{"stop": {"steps": STEPS}, **ON_STORAGE, **fields})


def assert_resumed(job: ClusterJob, attempt: int = 2) -> None:
    status = job.status
    assert status["attempt"] == attempt
    steps = job.body["spec"]["stop"]["steps"]
    assert status["progress"]["step"] == steps
    (resumed_from,) = job.resumed_from()
    assert 0 < resumed_from < steps


def test_killed_worker_is_resumed_and_ends_with_the_same_metrics(jobs: NamespaceJobs, storage: Path) -> None:
    """Also two jobs at once: the undisturbed one runs beside it.  What the killed one's peer says is not a cause."""
    group = {"name": "train", "replicas": 2, "accelerator": {"profile": "cpu", "count": 1}}
    two_pods = spec(workerGroups=[group], stop={"steps": 40})  # four workers on two cores: a step takes 0.3 s
    undisturbed = jobs.apply("undisturbed", two_pods)
    killed = jobs.apply("killed", two_pods)
    killed.until_step(3)
    # 1, unless two cores and three clusters left a pod without a turn for so long that its peer gave it up
    attempt = killed.status["attempt"]
    victim = killed.pods()[1]
    victim.kill(WORKER)
    killed.until("a further attempt", lambda: killed.status.get("attempt") == attempt + 1)
    failure = killed.status["lastFailure"]
    assert (failure["pod"], failure["container"], failure["exitCode"]) == (victim.name, "worker", 137), failure
    assert failure["attempt"] == attempt
    killed.until_succeeded()
    undisturbed.until_succeeded()
    assert_resumed(killed, attempt + 1)
    assert killed.status["countedRestarts"] == attempt
    assert without_times(metrics(storage, "killed"), BYTES) == without_times(metrics(storage, "undisturbed"), BYTES)


def test_killed_data_buffer_is_noticed_and_the_next_has_a_certificate_of_its_own(
    jobs: NamespaceJobs, storage: Path
) -> None:
    """Data buffers of two pods speak TLS, also when those of the second attempt have taken the places of the first."""
    group = {"name": "train", "replicas": 2, "accelerator": {"profile": "cpu", "count": 1}}
    data_buffer = {"memory": "32Mi", "deadlineSeconds": 60, "tls": True}
    job = jobs.apply("encrypted", spec(workerGroups=[group], stop={"steps": 40}, dataBuffer=data_buffer))
    job.until_step(3)
    job.pods()[1].kill(BUFFER)
    job.until("a second attempt", lambda: job.status.get("attempt") == 2)
    job.until_succeeded()
    assert_resumed(job)
    assert {"secret/encrypted-tls-a1", "secret/encrypted-tls-a2"} <= set(job.children())


def test_pod_deleted_while_the_operator_is_down(
    jobs: NamespaceJobs, storage: Path, operator: InstalledOperator
) -> None:
    job = jobs.apply("deleted", spec(stop={"steps": 400}))
    job.until_step(3)
    with operator.stopped():
        jobs.kubectl("delete", "pod", job.pods()[0].name, "--force", "--grace-period=0")
    job.until("a second attempt", lambda: job.status.get("attempt") == 2)
    job.until_step(4)


def test_evicted_pod_leaves_a_checkpoint_and_is_not_counted(jobs: NamespaceJobs, storage: Path) -> None:
    """As `kubectl drain` does it: the whole gang has the pod's grace for a checkpoint."""
    job = jobs.apply("drained", spec(checkpoint={"everySteps": 100}))
    job.until_step(3)
    pod = job.pods()[0].name
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": jobs.namespace}}
    path = f"/api/v1/namespaces/{jobs.namespace}/pods/{pod}/eviction"
    jobs.kubectl("create", "--raw", path, "-f", "-", input=json.dumps(eviction))
    job.until("a second attempt", lambda: job.status.get("attempt") == 2)
    assert job.status["lastFailure"]["cause"] == "PodDisrupted"
    assert list((storage / "runs" / "drained" / "checkpoints").glob("*/manifest.json")), (
        "its own steps are too few for one"
    )
    job.until_succeeded()
    assert job.status["countedRestarts"] == 0
    assert [row["step"] for row in metrics(storage, "drained")] == list(range(1, STEPS + 1))


def test_node_that_falls_silent_loses_the_job_to_another(
    jobs: NamespaceJobs, storage: Path, cluster: KubeCluster
) -> None:
    """Its kubelet is killed, so its pods cannot even end; they are given up after forceDeleteSeconds."""
    job = jobs.apply("silent", spec(stop={"steps": 400}, lifecycle={"forceDeleteSeconds": 5}))
    job.until_step(3)
    lost = job.pods()[0]
    number = int(lost.node.removeprefix("node"))
    cluster.kill_kubelet(number)
    try:
        job.until("an attempt on another node", lambda: _runs_elsewhere(job, lost.node), timeout_seconds=120)
        job.until_step(4)
        assert job.status["countedRestarts"] == 0, "a lost node is nobody's fault"
    finally:
        cluster.restart_node(number)


def _runs_elsewhere(job: ClusterJob, node: str) -> bool:
    return any(pod.is_running and pod.node != node and pod.attempt > 1 for pod in job.pods())


@pytest.mark.slow
def test_job_that_always_fails_stops_after_its_restarts(jobs: NamespaceJobs) -> None:
    code = "import os\n\ndef broken(*_, **__):\n    os.kill(os.getpid(), 9)\n"
    jobs.kubectl("create", "configmap", "broken-code", f"--from-literal=broken.py={code}")
    algorithm = small_spec()["algorithm"] | {"advantage": {"estimator": "broken:broken"}}
    policy = {"maxRestarts": 1}
    spec = small_spec(code={"configMap": "broken-code"}, algorithm=algorithm, failurePolicy=policy)
    job = jobs.apply("broken", spec)
    job.until_phase("Failed", 180)
    assert job.status["attempt"] == 2 and job.status["countedRestarts"] == 1
    assert job.condition("Failed")["reason"] == "RestartsExhausted"
