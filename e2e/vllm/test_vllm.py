"""vLLM on a cluster. Its image takes minutes to build, so that `make vllm-e2e` runs this and `make e2e` does not."""

from __future__ import annotations

from pathlib import Path

from e2e.cluster import KubeCluster
from e2e.cluster.images.image_recipes import WITH_VLLM
from e2e.jobs import ON_STORAGE, NamespaceJobs, metrics, small_spec


def test_who_generates_with_vllm_gets_its_image_and_weights_from_who_has_none(
    cluster: KubeCluster, jobs: NamespaceJobs, storage: Path
) -> None:
    cluster.load_image(WITH_VLLM)
    groups = [{"name": name, "accelerator": {"profile": "cpu", "count": 1}} for name in ("train", "rollout")]
    fields = {
        "rollout": {"engine": "VLLM", "maxResponseTokens": 20},
        "dataBuffer": {"memory": "96Mi", "deadlineSeconds": 120},
    }
    job = jobs.apply("vllm", small_spec(workerGroups=groups, **fields, **ON_STORAGE))
    job.until("two pods", lambda: len(job.pods()) == 2)
    images = {pod.body["metadata"]["labels"]["rljob.dev/group"]: image_of(pod.body) for pod in job.pods()}
    assert images == {"train": "localhost/rljob-worker-cpu:dev", "rollout": WITH_VLLM.image}
    job.until_succeeded(300)
    assert len([row for row in metrics(storage, "vllm") if row["step"] > 0]) == 4


def image_of(pod: dict) -> str:  # type: ignore[type-arg]
    return str(next(item["image"] for item in pod["spec"]["containers"] if item["name"] == "worker"))
