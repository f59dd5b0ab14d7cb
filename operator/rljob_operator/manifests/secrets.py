"""The token by which data buffers of one job know each other."""

from __future__ import annotations

from rljob_operator import names
from rljob_operator.manifests.context import JobContext, Manifest
from rljob_operator.manifests.metadata import metadata
from rljob_operator.manifests.pod.paths import TOKEN_KEY


def token_secret(context: JobContext, token: str) -> Manifest:
    """Created once and never replaced: pods of one attempt that read different tokens would refuse each other."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(context, names.token_secret_name(context.name), "token"),
        "type": "Opaque",
        "immutable": True,
        "stringData": {TOKEN_KEY: token},
    }
