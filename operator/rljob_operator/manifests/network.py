"""The network of a job: headless Services, by which pods and models find each other, and who may talk to them."""

from __future__ import annotations

from rljob_api.vocabulary import keys
from rljob_operator import names
from rljob_operator.manifests.agents import agents_ingress
from rljob_operator.manifests.context import JobContext, Manifest
from rljob_operator.manifests.metadata import metadata, selector
from rljob_operator.manifests.serving.ray_service import PORT_DASHBOARD


def service(context: JobContext) -> Manifest:
    """Names resolve before pods are ready: data buffers meet before workers start."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(context, names.service_name(context.name), "service"),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": selector(context),
            "ports": [{"name": "buffer", "port": keys.PORT_BUFFER, "protocol": "TCP", "targetPort": keys.PORT_BUFFER}],
        },
    }


def services_headless_service(context: JobContext) -> Manifest:
    """The name of a model resolves while its pod is ready: calls of one that starts again fail at once, and are made
    again."""
    port = {"name": "http", "port": keys.PORT_SERVICE, "protocol": "TCP", "targetPort": keys.PORT_SERVICE}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(context, names.services_domain(context.name), "services"),
        "spec": {
            "clusterIP": "None",
            "selector": selector(context, keys.CONTAINER_SERVICE),
            "ports": [port],
        },
    }


_RAY_PORTS = (PORT_DASHBOARD, keys.PORT_SERVICE)
"""What KubeRay asks of a head: how applications are, and whether its proxy answers."""


def network_policy(context: JobContext) -> Manifest:
    """Pods of the gang reach each other on every port, since collectives choose theirs, and the models beside the job,
    which reach nobody of it; pods of agents reach the endpoints of workers, and metrics and progress are for those whom
    the administrator names. What pods may reach elsewhere is not limited: models, data and trackers are anywhere.
    """
    ports = [{"protocol": "TCP", "port": port} for port in (keys.PORT_WORKER_METRICS, keys.PORT_BUFFER_METRICS)]
    ingress: list[Manifest] = [{"from": [{"podSelector": {"matchLabels": selector(context)}}]}]
    if (agents := agents_ingress(context)) is not None:
        ingress.append(agents)
    if context.pods.network_policy.metrics_from:
        ingress.append({"from": list(context.pods.network_policy.metrics_from), "ports": ports})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(context, context.name, "network-policy"),
        "spec": {
            "podSelector": {"matchLabels": {keys.LABEL_JOB: context.name}},
            "policyTypes": ["Ingress"],
            "ingress": ingress,
        },
    }


def services_network_policy(context: JobContext) -> Manifest:
    """Pods of one Ray reach each other on every port, since Ray chooses its own, and KubeRay's operator reaches them;
    other models of the job do too, which it trusts alike."""
    components = [keys.CONTAINER_SERVICE, keys.COMPONENT_SERVICE_HEAD]
    served = {
        "matchLabels": {keys.LABEL_JOB: context.name},
        "matchExpressions": [{"key": keys.LABEL_COMPONENT, "operator": "In", "values": components}],
    }
    ingress: list[Manifest] = [{"from": [{"podSelector": served}]}]
    if context.pods.network_policy.kube_ray_from:
        ports = [{"protocol": "TCP", "port": port} for port in _RAY_PORTS]
        ingress.append({"from": list(context.pods.network_policy.kube_ray_from), "ports": ports})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(context, names.services_domain(context.name), "network-policy"),
        "spec": {"podSelector": served, "policyTypes": ["Ingress"], "ingress": ingress},
    }
