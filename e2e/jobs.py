"""RLJobs on the cluster, as a user sees them: apply, watch, describe, patch, delete."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster import KubeCluster
from e2e.cluster.commands import CommandFailed
from e2e.cluster.waiting import wait_until
from e2e.pods import ClusterPod
from rljob.server import KubernetesServer

EXAMPLES = Path(__file__).parent.parent / "examples"
BYTES = "data/"
"""Metrics that two runs on a cluster are not asked to share, besides those of time."""


def small_spec(**fields: Any) -> dict[str, Any]:
    """A GRPO job of seconds: 4 problems x 4 answers, one worker; `fields` replace top-level ones."""
    spec: dict[str, Any] = {
        "models": [{"name": "actor", "path": "arithmetic/model"}],
        "data": {
            "train": [{"path": "arithmetic/train.parquet", "name": "arithmetic"}],
            "promptColumn": "question",
            "applyChatTemplate": True,
            "batchSize": 4,
            "maxPromptTokens": 32,
        },
        "rewards": [{"name": "correct", "run": "rljob_worker.rewards:final_number", "column": "answer"}],
        "algorithm": {"name": "GRPO", "groupSize": 4, "kl": {"coefficient": 0.0}},
        "workerGroups": [{"name": "train", "accelerator": {"profile": "cpu", "count": 1}}],
        "training": {"learningRate": 1.0e-4, "precision": "Float32"},
        "rollout": {"maxResponseTokens": 20},
        "checkpoint": {"everySteps": 2},
        "stop": {"steps": 4},
        "dataBuffer": {"memory": "32Mi", "deadlineSeconds": 60},
        "lifecycle": {"terminationGraceSeconds": 60},
    }
    return spec | fields


ON_STORAGE = {"storage": {"persistentVolumeClaim": "storage"}}


def example(name: str, **fields: Any) -> dict[str, Any]:
    """The spec of a shipped example, with top-level fields replaced."""
    spec: dict[str, Any] = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())["spec"]
    return spec | fields


class ClusterJob:
    """One RLJob."""

    def __init__(self, jobs: NamespaceJobs, name: str) -> None:
        self._jobs = jobs
        self.name = name

    @property
    def body(self) -> dict[str, Any]:
        return self._jobs.read("apis/rljob.dev/v1alpha1", f"rljobs/{self.name}")

    @property
    def status(self) -> dict[str, Any]:
        result: dict[str, Any] = self.body.get("status", {})
        return result

    @property
    def phase(self) -> str:
        return str(self.status.get("phase", ""))

    @property
    def step(self) -> int:
        return step_of(self.status)

    def condition(self, kind: str) -> dict[str, Any]:
        return condition_of(self.status, kind)

    def pods(self) -> list[ClusterPod]:
        listed = self._jobs.read("api/v1", "pods", labelSelector=f"rljob.dev/job={self.name}")
        return [ClusterPod(body) for body in listed["items"]]

    def models(self) -> list[ClusterPod]:
        """Pods of the job's services."""
        return [pod for pod in self.pods() if "rljob.dev/service" in pod.body["metadata"]["labels"]]

    def resumed_from(self) -> set[int]:
        """The steps from whose checkpoints the workers of the pods that are there went on; empty: from the beginning.

        A run that began again from step 0 would end with the same metrics.
        """
        logs = self._jobs.kubectl("logs", "-l", f"rljob.dev/job={self.name}", "-c", "worker", "--tail=-1")
        return {int(step) for step in re.findall(r"resumed from step (\d+)", logs)}

    def patch(self, **spec: Any) -> None:
        self._jobs.kubectl("patch", "rlj", self.name, "--type=merge", "-p", json.dumps({"spec": spec}))

    def delete(self) -> None:
        self._jobs.kubectl("delete", "rlj", self.name, "--timeout=60s")

    def until(
        self,
        what: str,
        is_true: Callable[[], Any],
        timeout_seconds: float = 120,
        reached: Callable[[], Any] = lambda: None,
    ) -> None:
        """Wait; a job that failed meanwhile is shown at once. reached: as in `wait_until`."""

        def ask() -> bool:
            if is_true():
                return True
            self.assert_not_failed(self.status, what)
            return False

        wait_until(ask, f"{self.name}: {what}", timeout_seconds, interval_seconds=0.3, reached=reached)

    def until_phase(self, phase: str, timeout_seconds: float = 120) -> None:
        if phase == "Failed":
            wait_until(lambda: self.phase == phase, f"{self.name}: phase {phase}", timeout_seconds, 0.3)
        else:
            self.until(f"phase {phase}", lambda: self.phase == phase, timeout_seconds)

    def until_succeeded(self, step_seconds: float = 120) -> None:
        """step_seconds: within which it starts, takes a step, or ends; a slow machine may take as many as it has."""
        seen = self.status

        def ask() -> bool:
            nonlocal seen
            seen = self.status
            self.assert_not_failed(seen, "phase Succeeded")
            return seen.get("phase") == "Succeeded"

        what = f"{self.name}: phase Succeeded"
        wait_until(ask, what, step_seconds, interval_seconds=0.3, reached=lambda: step_of(seen))

    def assert_not_failed(self, status: Mapping[str, Any], what: str) -> None:
        failed = condition_of(status, "Failed")
        assert failed.get("status") != "True", f"{self.name} failed while waiting for {what}: {failed}"

    def until_step(self, step: int, timeout_seconds: float = 120) -> None:
        """timeout_seconds: within which it starts, or takes a step."""
        self.until(f"step {step}", lambda: self.step >= step, timeout_seconds, reached=lambda: self.step)

    def until_gone(self, timeout_seconds: float = 60) -> None:
        """Nothing that names the job is left: pods, services, secrets, config maps."""
        wait_until(lambda: not self.children(), f"{self.name}: nothing left", timeout_seconds, 0.5)

    def children(self) -> list[str]:
        kinds = "pods,services,secrets,configmaps"
        return self._jobs.kubectl("get", kinds, "-l", f"rljob.dev/job={self.name}", "-o", "name").split()


def step_of(status: Mapping[str, Any]) -> int:
    return int((status.get("progress") or {}).get("step", 0))


def condition_of(status: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The condition of this type; empty when the job has none."""
    return next((item for item in status.get("conditions", []) if item["type"] == kind), {})


class NamespaceJobs:
    """The RLJobs of one namespace."""

    def __init__(self, cluster: KubeCluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace

    def create_namespace(self) -> None:
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        metadata = {"name": self.namespace, "labels": labels}
        manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
        self.cluster.apply(manifest)

    def delete_namespace(self) -> None:
        self.cluster.kubectl("delete", "namespace", self.namespace, "--wait=false")
        self.cluster.kubectl("delete", "pv", "-l", f"rljob.dev/e2e={self.namespace}", "--wait=false")

    def apply(self, name: str, spec: dict[str, Any], **metadata: Any) -> ClusterJob:
        """`kubectl apply` of an RLJob."""
        meta = {"name": name, **metadata}
        body = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": meta, "spec": spec}
        self.kubectl("apply", "-f", "-", input=yaml.safe_dump(body))
        return ClusterJob(self, name)

    def apply_file(self, path: Path) -> ClusterJob:
        """`kubectl apply -f FILE`, the file as it is."""
        self.kubectl("apply", "-f", str(path))
        return ClusterJob(self, yaml.safe_load(path.read_text())["metadata"]["name"])

    def refused(self, name: str, spec: dict[str, Any]) -> str:
        """What kubectl says when the API server refuses the job."""
        try:
            self.apply(name, spec)
        except CommandFailed as error:
            return str(error)
        raise AssertionError(f"the API server took {name}")

    def events(self, name: str) -> list[str]:
        """Reasons of the job's events, oldest first."""
        listed = json.loads(self.kubectl("get", "events", "-o", "json"))["items"]
        about = [item for item in listed if item.get("involvedObject", {}).get("name") == name]
        about.sort(key=lambda item: (item["lastTimestamp"] or "", item["metadata"]["name"]))
        return [item["reason"] for item in about]

    def story(self) -> str:
        """Everything a person would ask for."""
        parts = [
            ("get", "rlj", "-o", "wide"),
            ("get", "pods", "-o", "wide"),
            ("describe", "rlj"),
            ("get", "events", "--sort-by=.lastTimestamp"),
            ("logs", "-l", "rljob.dev/job", "--all-containers", "--tail=15", "--prefix"),
        ]
        return "\n".join(self._try(*words) for words in parts)

    def read(self, group: str, what: str, **query: str) -> dict[str, Any]:
        """An object or a list of this namespace. For what is asked again and again: kubectl is a program to start."""
        return server(self.cluster.kubeconfig).read(f"/{group}/namespaces/{self.namespace}/{what}", **query)

    def kubectl(self, *words: str, input: str | None = None) -> str:
        return self.cluster.kubectl("-n", self.namespace, *words, input=input)

    def _try(self, *words: str) -> str:
        try:
            return f"$ kubectl {' '.join(words)}\n{self.kubectl(*words)}"
        except CommandFailed as error:
            return str(error)


@cache
def server(kubeconfig: Path) -> KubernetesServer:
    """One for all questions: its connections stay open."""
    return KubernetesServer(kubeconfig=kubeconfig)


def metrics(storage: Path, job: str) -> list[dict[str, float]]:
    """metrics.jsonl of a job on shared storage."""
    path = storage / "runs" / job / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]
