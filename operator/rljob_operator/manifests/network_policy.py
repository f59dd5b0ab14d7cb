"""Who may talk to the pods of a job."""

from __future__ import annotations

from rljob_api.vocabulary import keys
from rljob_operator import names
from rljob_operator.manifests.context import JobContext, Manifest
from rljob_operator.manifests.metadata import metadata, selector
from rljob_operator.manifests.serving.ray_service import PORT_DASHBOARD

_RAY_PORTS = (PORT_DASHBOARD, keys.PORT_SERVICE)
"""What KubeRay asks of a head: how applications are, and whether its proxy answers."""


def network_policy(context: JobContext) -> Manifest:
    """Pods of the gang reach each other on every port, since collectives choose theirs, and the models beside the job,
    which reach nobody of it; metrics and progress are for those whom the administrator names. What pods may reach
    elsewhere is not limited: models, data and trackers are anywhere.
    """
    ports = [{"protocol": "TCP", "port": port} for port in (keys.PORT_WORKER_METRICS, keys.PORT_BUFFER_METRICS)]
    ingress: list[Manifest] = [{"from": [{"podSelector": {"matchLabels": selector(context)}}]}]
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
