"""Who may talk to the pods of a job."""

from __future__ import annotations

from rljob_api.vocabulary import keys
from rljob_operator.manifests.context import JobContext, Manifest
from rljob_operator.manifests.metadata import metadata, selector


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
