"""Headless Services: pods of a gang find each other by name, and the models beside the job."""

from __future__ import annotations

from rljob_api.vocabulary import keys
from rljob_operator import names
from rljob_operator.manifests.context import JobContext, Manifest
from rljob_operator.manifests.metadata import metadata, selector


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


def services_domain(context: JobContext) -> Manifest:
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
