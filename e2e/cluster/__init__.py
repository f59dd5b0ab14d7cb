"""A real Kubernetes cluster for tests: `from e2e.cluster import Cluster`."""

from e2e.cluster.cluster import KubeCluster

__all__ = ["KubeCluster"]
