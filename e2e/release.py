"""The chart without an operator's pod: for tests of what the API server makes of it."""

from __future__ import annotations

from e2e.cluster import KubeCluster
from e2e.operator import CHART, NAMESPACE, RELEASE, VALUES


def ensure_release(cluster: KubeCluster) -> None:
    """Install the chart, with no replica, unless it is installed already; returns when jobs can be stored."""
    if "rljobs.rljob.dev" not in cluster.kubectl("get", "crd", "-o", "name"):
        release = (RELEASE, CHART, "-n", NAMESPACE, "--create-namespace", "--values", VALUES)
        cluster.helm("upgrade", "--install", *release, "--set", "operator.replicas=0")
    cluster.kubectl("wait", "--for=condition=Established", "crd/rljobs.rljob.dev", "--timeout=30s")
