"""The headless Service: pods find each other by name."""

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
