"""What a real API server makes of the chart: every object, and who may do what."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from e2e.cluster import KubeCluster
from e2e.cluster.waiting import wait_until
from e2e.operator import CHART, NAMESPACE, RELEASE, VALUES
from e2e.release import ensure_release

CI_VALUES = sorted((CHART / "ci").glob("*-values.yaml"))
OF_THE_PROMETHEUS_OPERATOR = ("PodMonitor", "PrometheusRule")
OPERATOR_IDENTITY = f"system:serviceaccount:{NAMESPACE}:{RELEASE}"
HOMES = ("team-a", "team-b")


@pytest.fixture(scope="module")
def installed(cluster: KubeCluster) -> Iterator[KubeCluster]:
    ensure_release(cluster)
    for name in HOMES:
        cluster.kubectl("create", "namespace", name)
    yield cluster
    for name in HOMES:
        cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.mark.parametrize("path", CI_VALUES, ids=lambda path: path.stem)
def test_every_object_is_accepted(installed: KubeCluster, path: Path) -> None:
    text = installed.helm("template", RELEASE, CHART, "-n", NAMESPACE, "--kube-version", "v1.34.2", "--values", path)
    objects = [item for item in yaml.safe_load_all(text) if item and item["kind"] not in OF_THE_PROMETHEUS_OPERATOR]
    answer = installed.kubectl(
        "apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-",
        input=yaml.safe_dump_all(objects),
    )  # fmt: skip
    assert len(answer.splitlines()) == len(objects)


def may(cluster: KubeCluster, user: str, verb: str, resource: str, namespace: str = "", name: str = "") -> bool:
    """Whether `user` may; `resource` as in `pods`, `pods/exec`, `rljobs.rljob.dev/status`."""
    resource, _, subresource = resource.partition("/")
    plural, _, group = resource.partition(".")
    wish = {"verb": verb, "group": group, "resource": plural, "subresource": subresource}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "resourceAttributes": wish | {"namespace": namespace, "name": name}},
    }
    answer = cluster.kubectl("create", "-o", "json", "-f", "-", input=json.dumps(review))
    return bool(json.loads(answer)["status"]["allowed"])


@pytest.mark.parametrize(
    "wish",
    [
        ("list", "rljobs.rljob.dev"),
        ("patch", "rljobs.rljob.dev/status", "team-a"),
        ("create", "pods", "team-a"),
        ("create", "secrets", "team-a"),
        ("create", "events", "team-a"),
        ("get", "storageclasses.storage.k8s.io"),
        ("get", "namespaces", "", "team-a"),
        ("update", "leases.coordination.k8s.io", NAMESPACE, RELEASE),
    ],
    ids=" ".join,
)
def test_the_operator_may(installed: KubeCluster, wish: tuple[str, ...]) -> None:
    assert may(installed, OPERATOR_IDENTITY, *wish)


@pytest.mark.parametrize(
    "wish",
    [
        ("list", "secrets", "team-a"),
        ("delete", "secrets", "team-a"),
        ("patch", "pods", "team-a"),
        ("update", "rljobs.rljob.dev", "team-a"),
        ("create", "pods/exec", "team-a"),
        ("delete", "nodes"),
        ("update", "leases.coordination.k8s.io", NAMESPACE, "another"),
        ("create", "clusterroles.rbac.authorization.k8s.io"),
        ("delete", "persistentvolumeclaims", "team-a"),
    ],
    ids=" ".join,
)
def test_the_operator_may_not(installed: KubeCluster, wish: tuple[str, ...]) -> None:
    assert not may(installed, OPERATOR_IDENTITY, *wish)


def test_people_with_the_usual_roles_may_view_and_edit_jobs(installed: KubeCluster) -> None:
    for role, user in (("view", "vera"), ("edit", "ed")):
        installed.kubectl("-n", "team-a", "create", "rolebinding", user, f"--clusterrole={role}", f"--user={user}")
    wait_until(lambda: may(installed, "vera", "list", "rljobs.rljob.dev", "team-a"), "roles to be added up", 30)
    wait_until(lambda: may(installed, "ed", "create", "rljobs.rljob.dev", "team-a"), "roles to be added up", 30)
    assert not may(installed, "vera", "create", "rljobs.rljob.dev", "team-a")
    assert not may(installed, "ed", "patch", "rljobs.rljob.dev/status", "team-a")
    assert not may(installed, "ed", "list", "rljobs.rljob.dev", "team-b")


def test_an_upgrade_brings_the_definition_up_to_date(installed: KubeCluster) -> None:
    columns = "jsonpath={.spec.versions[0].additionalPrinterColumns[*].name}"
    before = installed.kubectl("get", "crd", "rljobs.rljob.dev", "-o", columns)
    installed.kubectl(
        "patch", "crd", "rljobs.rljob.dev", "--type=json",
        "-p", '[{"op": "remove", "path": "/spec/versions/0/additionalPrinterColumns/0"}]',
    )  # fmt: skip
    replicas = installed.kubectl("-n", NAMESPACE, "get", "deployments", "-o", "jsonpath={.items[0].spec.replicas}")
    installed.helm(
        "upgrade", RELEASE, CHART, "-n", NAMESPACE, "--values", VALUES, "--set", f"operator.replicas={replicas}"
    )
    assert installed.kubectl("get", "crd", "rljobs.rljob.dev", "-o", columns) == before
