"""`helm uninstall` leaves nothing of ours."""

from e2e.cluster import KubeCluster
from e2e.operator import NAMESPACE, InstalledOperator


def test_uninstall_leaves_nothing(cluster: KubeCluster, operator: InstalledOperator) -> None:
    """RLJobs and their CRD stay until somebody deletes them; everything else of the chart goes."""
    operator.uninstall()
    try:
        assert_gone(cluster)
    finally:
        operator.install()


def assert_gone(cluster: KubeCluster) -> None:
    kinds = "deployments,services,configmaps,secrets,serviceaccounts,roles,rolebindings"
    left = cluster.kubectl("-n", NAMESPACE, "get", kinds, "-l", "app.kubernetes.io/name=rljob", "-o", "name")
    everywhere = "clusterroles,clusterrolebindings"
    left += cluster.kubectl("get", everywhere, "-l", "app.kubernetes.io/name=rljob", "-o", "name")
    assert left == ""
    cluster.kubectl("delete", "crd", "rljobs.rljob.dev", "--ignore-not-found")
    assert "rljob" not in cluster.kubectl("get", "crd", "-o", "name")
