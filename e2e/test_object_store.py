"""Data, model and checkpoints in an object store, which a real S3 server on this machine is to the pods."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import KubeCluster
from e2e.cluster.waiting import wait_until
from e2e.jobs import ClusterJob, NamespaceJobs, small_spec
from rljob_worker.checkpoint.manifest import Manifest, read_manifest
from rljob_worker.storage.paths import storage_path
from rljob_worker.storage.tests.s3_server import S3Server, s3_server

WORKER = "rljob_worker.runtime"
STEPS = 40
HOLD_WINDOW_SECONDS = 25.0
"""The client gives a request up after 30."""
RUNS = "s3://rljob/runs"


@pytest.fixture
def store(jobs: NamespaceJobs, cluster: KubeCluster, seed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A bucket with model and data; the Secret `store` opens it to pods, and the environment to this process."""
    with s3_server(cluster.host_address) as server:
        server.put("rljob", b"")
        server.put("rljob/data/train.parquet", (seed / "arithmetic" / "train.parquet").read_bytes())
        for file in (seed / "arithmetic" / "model").iterdir():
            server.put(f"rljob/model/{file.name}", file.read_bytes())
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        entries = [f"--from-literal={name}={value}" for name, value in server.environment.items()]
        jobs.kubectl("create", "secret", "generic", "store", *entries)
        yield server


def stored_spec(uri: str = RUNS, secret: str = "store", affinity: dict[str, Any] | None = None) -> dict[str, Any]:
    """A job of which nothing is on any disk that outlives a pod."""
    group: dict[str, Any] = {"name": "train", "accelerator": {"profile": "cpu", "count": 1}}
    if affinity is not None:
        group["template"] = {"spec": {"affinity": {"nodeAffinity": affinity}}}
    data = small_spec()["data"] | {"train": [{"path": "s3://rljob/data/*.parquet", "name": "arithmetic"}]}
    return small_spec(
        models=[{"name": "actor", "path": "s3://rljob/model"}],
        data=data,
        workerGroups=[group],
        storage={"objectStore": {"uri": uri, "secret": secret}},
        checkpoint={"everySteps": 4, "keepLast": 100},
        stop={"steps": STEPS},
    )


def on(node: str) -> dict[str, Any]:
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [_is(node)]}}


def rather_on(node: str) -> dict[str, Any]:
    return {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": _is(node)}]}


def _is(node: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}


def manifests(job: ClusterJob, jobs: NamespaceJobs) -> list[Manifest]:
    """Manifests of the checkpoints that are committed in the store, by step."""
    checkpoints = storage_path(f"{RUNS}/{jobs.namespace}/{job.name}/checkpoints")
    result = (read_manifest(path) for path in checkpoints.glob("step-*"))
    return sorted((item for item in result if item is not None), key=lambda item: item.step)


def shards(manifest: Manifest) -> dict[str, tuple[int, int]]:
    """Size and checksum of what engines wrote, except indexes, which know where they are."""
    return {name: tuple(entry) for name, entry in manifest.files.items() if name.endswith(".distcp")}


class HeldCommits:
    """Commits of a job's first attempt reach the store once its second one has written something."""

    def __init__(self, job: str) -> None:
        self._job = f"/{job}/checkpoints/"
        self._places: set[str] = set()
        self._second_has_begun = threading.Event()
        self.held: list[str] = []

    def __call__(self, request: str) -> None:
        """Called with every write, in a thread of its own. A manifest's place is taken first: its second put is the
        commit, whose owner was looked at just before."""
        if self._job in request and "-attempt-2-" in request:
            self._second_has_begun.set()
        if self._job not in request or "-attempt-1-" not in request or not request.endswith("/manifest.json"):
            return
        if request in self._places:
            self.held.append(request)
            self._second_has_begun.wait(HOLD_WINDOW_SECONDS)
        self._places.add(request)


def test_a_job_lives_in_a_store_and_an_attempt_that_was_given_up_cannot_commit(
    jobs: NamespaceJobs, cluster: KubeCluster, store: S3Server
) -> None:
    """The node falls silent with the attempt still running on it, in the middle of a commit: nobody but the store can
    tell it that another has begun."""
    first, second = cluster.node_name(1), cluster.node_name(2)
    undisturbed = jobs.apply("undisturbed", stored_spec(affinity=on(second)))
    job = jobs.apply("stored", stored_spec(affinity=rather_on(first)))
    job.until("a checkpoint", lambda: (job.status.get("progress") or {}).get("checkpointStep"))
    (lost,) = job.pods()
    assert lost.node == first and lost.processes(WORKER)
    store.fail_write = commits = HeldCommits("stored")
    cluster.kill_kubelet(1)
    try:
        jobs.kubectl("cordon", first)
        jobs.kubectl("delete", "pod", lost.name, "--force", "--grace-period=0")
        wait_until(lambda: not lost.processes(WORKER), "the attempt that was given up to end by itself", 240)
    finally:
        cluster.start_kubelet(1)
        jobs.kubectl("uncordon", first)
    job.until_succeeded()
    undisturbed.until_succeeded()

    assert job.status["attempt"] == 2 and commits.held
    (resumed_from,) = job.resumed_from()
    assert 0 < resumed_from < STEPS
    result = manifests(job, jobs)
    assert {item.step for item in result} == set(range(4, STEPS + 1, 4))
    assert max(item.step for item in result if item.attempt == 1) == resumed_from
    assert shards(result[-1]) == shards(manifests(undisturbed, jobs)[-1]) != {}


def test_what_keeps_a_job_from_its_store_is_a_condition_of_it(jobs: NamespaceJobs, store: S3Server) -> None:
    jobs.kubectl("create", "secret", "generic", "misnamed", "--from-literal=accessKey=a", "--from-literal=secretKey=b")
    absent = jobs.apply("absent", stored_spec(secret="absent"))
    misnamed = jobs.apply("misnamed", stored_spec(secret="misnamed"))
    nowhere = jobs.apply("nowhere", stored_spec(uri="s3://another/runs"))
    for job, said in ((absent, "there is no Secret absent"), (misnamed, "has no entry AWS_")):
        job.until("a refusal", lambda job=job: job.condition("Accepted").get("reason") == "SecretMissing")
        assert said in job.condition("Accepted")["message"] and not job.pods()

    nowhere.until_phase("Failed")
    assert nowhere.condition("Failed")["reason"] == "InvalidJob"
    assert "s3://another/runs" in (said := nowhere.condition("Failed")["message"]) and "no such bucket" in said

    store.require_credentials()
    denied = jobs.apply("denied", stored_spec())
    denied.until_phase("Failed")
    assert denied.condition("Failed")["reason"] == "InvalidJob"
    assert "the store refuses: 403 Forbidden (InvalidAccessKeyId" in (said := denied.condition("Failed")["message"])
    assert "AWS_ACCESS_KEY_ID" in said
