"""The installed chart: install, kill, stop, start, uninstall."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster import KubeCluster
from e2e.cluster.images.image_recipes import CHECKOUT
from e2e.cluster.waiting import wait_until

CHART = CHECKOUT / "charts" / "rljob"
VALUES = CHECKOUT / "e2e" / "values.yaml"
NAMESPACE = "rljob-system"
RELEASE = "rljob"
SELECTOR = "app.kubernetes.io/name=rljob"


class InstalledOperator:
    """The operator as helm runs it."""

    def __init__(self, cluster: KubeCluster) -> None:
        self._cluster = cluster

    def install(self, *more: str, version: Path = CHECKOUT) -> None:
        """`helm upgrade --install` with `more` flags, then wait until it is ready. version: whose chart it is."""
        chart, values = (version / path.relative_to(CHECKOUT) for path in (CHART, VALUES))
        self._cluster.helm(
            "upgrade", "--install", RELEASE, chart, "-n", NAMESPACE, "--create-namespace", "--values", values,
            "--wait", "--timeout", "3m", *more,
        )  # fmt: skip

    def roll_back(self) -> None:
        """`helm rollback` to what was installed before, then wait until it is ready."""
        self._cluster.helm("rollback", RELEASE, "-n", NAMESPACE, "--wait", "--timeout", "3m")

    def uninstall(self) -> None:
        self._cluster.helm("uninstall", RELEASE, "-n", NAMESPACE, "--wait", "--timeout", "2m")

    def pods(self) -> list[str]:
        """Names of the operator's pods that are not on their way out."""
        result = json.loads(self._kubectl("get", "pods", "-l", SELECTOR, "-o", "json"))["items"]
        return [pod["metadata"]["name"] for pod in result if "deletionTimestamp" not in pod["metadata"]]

    def num_restarts(self) -> int:
        """How often containers of the pods that are there were started again."""
        counts = "jsonpath={.items[*].status.containerStatuses[*].restartCount}"
        kubectl = self._kubectl("get", "pods", "-l", SELECTOR, "-o", counts)
        return sum(map(int, kubectl.split()))

    def kill(self) -> None:
        """SIGKILL, with nothing said; the Deployment makes another, which is not waited for."""
        for pod in self.pods():
            self._kubectl("delete", "pod", pod, "--force", "--grace-period=0", "--wait=false")

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """No operator for the length of the block."""
        self._scale(0)
        try:
            wait_until(lambda: not self.pods(), "the operator to be gone", 60)
            yield
        finally:
            self._scale(1)
            self._kubectl("rollout", "status", f"deployment/{self._deployment()}", "--timeout=120s")

    def logs(self) -> str:
        """The end of what it wrote."""
        return self._kubectl("logs", "-l", SELECTOR, "--tail=80", "--prefix")

    def _scale(self, replicas: int) -> None:
        self._kubectl("scale", f"deployment/{self._deployment()}", f"--replicas={replicas}")

    def _deployment(self) -> str:
        selector = ("-l", SELECTOR)
        return self._kubectl("get", "deployments", *selector, "-o", "jsonpath={.items[0].metadata.name}")

    def _kubectl(self, *words: str) -> str:
        return self._cluster.kubectl("-n", NAMESPACE, *words)
