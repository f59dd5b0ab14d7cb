"""The chart's policies keep out what the operator keeps out, whoever makes the pod or the job."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from e2e.admission.api_server import AdmissionApiServer
from e2e.cluster.images.image_recipes import CHECKOUT
from rljob_api.tests.builders import SMALL
from rljob_operator.manifests import pods as operator_pods
from rljob_operator.manifests.context import JobContext
from rljob_operator.manifests.tests.builders import make_context, one_group
from rljob_operator.manifests.tests.hostile_templates import HOSTILE

Manifest = dict[str, Any]

INVALID = ("devices of the whole pod", "process of the host")
"""Hostile templates that are not pods of this version, regardless of policies."""
RUNTIME_CLASS = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "host"},
    "handler": "host",
}
CRD = CHECKOUT / "crds" / "rljobs.rljob.dev.yaml"
REFUSED: Manifest = {
    "workerGroups": [{"name": "train", "accelerator": {"profile": "nvidia"}}],
    "scheduling": {"provider": "None"},
}
"""What every policy over jobs here refuses."""
JOB_CEILINGS: dict[str, Manifest] = {
    "counted": {"accelerators": 0},
    "queued": {"queues": {"required": True, "names": ["batch"]}},
    "given": {"queues": {"required": True, "default": "main", "names": ["batch"]}},
}
QUEUE = "kueue.x-k8s.io/queue-name"


ALWAYS = {"restartPolicy": "Always"}


@pytest.fixture(scope="module")
def closed(server: AdmissionApiServer) -> dict[str, str]:
    """A namespace for each set of ceilings that a hostile template is held against."""
    server.kubectl("apply", "-f", "-", input=json.dumps(RUNTIME_CLASS))
    result: dict[str, str] = {}
    for case in HOSTILE.values():
        words = json.dumps(case.ceilings)
        if words not in result:
            result[words] = f"closed-{len(result)}"
            server.make_namespace(result[words], accounts=("default", "admin"))
            server.apply_policies(result[words], result[words], case.ceilings)
    for namespace in result.values():
        server.wait_for_policy(namespace)
    return result


def pod_of(context: JobContext) -> Manifest:
    (made,) = operator_pods(context, 1)
    return {"metadata": {name: made["metadata"][name] for name in ("labels", "annotations")}, "spec": made["spec"]}


@pytest.mark.parametrize("name", HOSTILE)
def test_the_api_server_refuses_what_reaches_beyond_its_pod(
    server: AdmissionApiServer, closed: dict[str, str], name: str
) -> None:
    case = HOSTILE[name]
    context = make_context(one_group(template=case.template), "podSecurity=Privileged")
    answer = server.ask_pod(closed[json.dumps(case.ceilings)], pod_of(context))
    assert not answer.is_admitted
    assert case.ceiling in answer.message or (name in INVALID and answer.is_invalid)


def test_the_api_server_admits_the_pods_of_an_ordinary_job(server: AdmissionApiServer, closed: dict[str, str]) -> None:
    ordinary = pod_of(make_context("dataBuffer.tls=true", "storage={persistentVolumeClaim: data}"))
    for namespace in closed.values():
        answer = server.ask_pod(namespace, ordinary)
        assert answer.is_admitted, answer.message


def group(count: int = 0, replicas: int = 1, **spec: Any) -> Manifest:
    accelerator = {"accelerator": {"profile": "nvidia", "count": count}} if count else {}
    return {"name": "train", "replicas": replicas, "template": {"spec": spec}, **accelerator}


def container(name: str, count: object, resource: str = "nvidia.com/gpu", **fields: Any) -> Manifest:
    return {"name": name, "image": "a:1", "resources": {"limits": {resource: count}}, **fields}


def judge(**group: Any) -> Manifest:
    run = {"name": "judge", "run": "rljob_worker.services:reward_model", "options": {"path": "m"}}
    return {**run, "workerGroup": group}


def refused(server: AdmissionApiServer, namespace: str, labels: dict[str, str], **spec: Any) -> str:
    """What the server says to a job; nothing where it admits it."""
    body = yaml.safe_load(SMALL)
    body["metadata"]["labels"] = labels
    body["spec"] |= spec
    answer = server.ask(f"/apis/rljob.dev/v1alpha1/namespaces/{namespace}/rljobs", body)
    return "" if answer.is_admitted else answer.message


@pytest.fixture(scope="module")
def job_server(server: AdmissionApiServer) -> AdmissionApiServer:
    """The server with jobs, and namespaces whose policies are about them."""
    server.kubectl("apply", "--server-side", "-f", str(CRD))
    for namespace, ceilings in JOB_CEILINGS.items():
        server.make_namespace(namespace)
        server.apply_policies(namespace, namespace, ceilings)
        server.wait_for_policy(namespace, lambda name=namespace: bool(refused(server, name, {}, **REFUSED)))
    return server


@pytest.mark.parametrize(
    ("asked", "spec"),
    [
        (0, {"workerGroups": [group()]}),
        (8, {"workerGroups": [group(count=4, replicas=2)]}),
        (8, {"workerGroups": [group(count=4, replicas=2, containers=[container("worker", "4")])]}),
        (128, {"workerGroups": [group(replicas=2, initContainers=[container("before", 64)])]}),
        # beside a sidecar with 1, first 2, then 4 in the worker and 3 more: 1 + max(2, 4 + 3)
        (
            8,
            {
                "workerGroups": [
                    group(
                        count=4,
                        initContainers=[container("mine", 1, **ALWAYS), container("before", 2)],
                        containers=[container("other", 3)],
                    )
                ]
            },
        ),
        (7, {"workerGroups": [group(containers=[container("worker", 7, "nvidia.com/mig-1g.5gb")])]}),
        (0, {"workerGroups": [group(containers=[container("worker", 8, "rdma/hca")])]}),
        (64, {"workerGroups": [group(resources={"limits": {"nvidia.com/gpu": 64}})]}),
        (2, {"services": [judge(replicas=2, accelerator={"profile": "nvidia", "count": 1})]}),
        (3, {"services": [judge(template={"spec": {"containers": [container("service", 3)]}})]}),
    ],
)  # fmt: skip
def test_the_api_server_counts_the_accelerators_of_a_job(
    job_server: AdmissionApiServer, asked: int, spec: Manifest
) -> None:
    said = refused(job_server, "counted", {}, **spec)
    assert (f"denied request: {asked} accelerators, and a job may have 0" in said) if asked else not said


@pytest.mark.parametrize(
    ("namespace", "labels", "scheduling", "words"),
    [
        ("queued", {}, {}, "no queue, and every job waits in one"),
        ("queued", {QUEUE: "batch"}, {}, ""),
        ("queued", {}, {"provider": "Kueue", "queue": "batch"}, ""),
        ("queued", {QUEUE: "prod"}, {}, "queue prod: allowed are batch (queues.names)"),
        ("queued", {QUEUE: "batch"}, {"provider": "None"}, "scheduling.provider None, and every job waits"),
        ("given", {}, {}, ""),
        ("given", {QUEUE: "main"}, {}, ""),
        ("given", {QUEUE: "prod"}, {}, "(queues.names)"),
        ("given", {}, {"provider": "Volcano"}, "scheduling.provider Volcano"),
    ],
)
def test_the_api_server_has_every_job_wait_in_a_queue(
    job_server: AdmissionApiServer, namespace: str, labels: dict[str, str], scheduling: Manifest, words: str
) -> None:
    said = refused(job_server, namespace, labels, scheduling=scheduling)
    assert (words in said) if words else not said
