"""What an API server that has RLJobs, but none of them, answers."""

from typing import Any

from rljob_operator.tests.api_server import ApiServer, page, say, watch

JOBS = "/apis/rljob.dev/v1alpha1/rljobs"
PODS = "/api/v1/pods"

VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
GROUP = {
    "name": "rljob.dev",
    "versions": [{"groupVersion": "rljob.dev/v1alpha1", "version": "v1alpha1"}],
    "preferredVersion": {"groupVersion": "rljob.dev/v1alpha1", "version": "v1alpha1"},
}


def resources(version: str, plural: str, kind: str, namespaced: bool) -> dict[str, Any]:
    """What the server says it has; kopf asks before it watches."""
    result = {"name": plural, "singularName": kind.lower(), "namespaced": namespaced, "kind": kind, "verbs": VERBS}
    return {"kind": "APIResourceList", "groupVersion": version, "resources": [result]}


def job(name: str, version: int) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": metadata, "spec": {}}


def serve_rljobs(server: ApiServer) -> None:
    """Script what the operator and kopf ask at their start: nothing is there, and nothing changes."""
    server.on("GET", "/api", say({"kind": "APIVersions", "versions": ["v1"]}))
    server.on("GET", "/api/v1", say(resources("v1", "namespaces", "Namespace", False)))
    server.on("GET", "/apis", say({"kind": "APIGroupList", "groups": [GROUP]}))
    server.on("GET", "/apis/rljob.dev/v1alpha1", say(resources("rljob.dev/v1alpha1", "rljobs", "RLJob", True)))
    server.on("GET", JOBS, page(version=5))
    server.on("WATCH", JOBS, watch())
    server.on("GET", PODS, page(version=5))
    server.on("WATCH", PODS, watch())
