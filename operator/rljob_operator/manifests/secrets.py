"""The Secrets of a job: the token and the certificates by which its data buffers know each other."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from rljob_api.certificates import issue
from rljob_api.planning.plan import GroupPlan
from rljob_api.vocabulary import keys
from rljob_api.vocabulary.agents_token import agents_token
from rljob_api.vocabulary.quantity import format_bytes
from rljob_operator import names
from rljob_operator.manifests.context import JobContext, Manifest
from rljob_operator.manifests.metadata import metadata

TOKEN_KEY, AGENTS_TOKEN_KEY = "token", "agents-token"

MAX_BYTES = 1 << 20
"""The API server takes no larger Secret."""
PAIR_BYTES = 850
"""A key and a certificate as PEM, without the names in it."""
BYTES_PER_CHARACTER = 4 / 3 * 65 / 64
"""Bytes of a character of a name, as PEM: base64, and a line end after 64."""


def token_secret(context: JobContext, token: str) -> Manifest:
    """The token, and that of agents, created once and never replaced: pods of one attempt with different tokens would
    refuse each other."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(context, names.token_secret_name(context.name), "token"),
        "type": "Opaque",
        "immutable": True,
        "stringData": {TOKEN_KEY: token, AGENTS_TOKEN_KEY: agents_token(token)},
    }


def tls_secret(context: JobContext, attempt: int, now: datetime) -> Manifest:
    """The certificates of an attempt, issued anew by every call: created once for an attempt and never replaced.

    One object, so that it is there as a whole or not at all: hosts of two authorities would refuse each other.
    """
    called = dict(_hosts(context))
    issued = issue(context.name, attempt, {host: (name,) for host, name in called.items()}, now)
    entries = {keys.TLS_AUTHORITY: issued.authority}
    for host, pair in issued.hosts.items():
        entries |= {_certificate_entry(host): pair.certificate, _key_entry(host): pair.key}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(context, names.tls_secret_name(context.name, attempt), "tls"),
        "type": "Opaque",
        "immutable": True,
        "stringData": {entry: data.decode() for entry, data in entries.items()},
    }


def tls_items(group: GroupPlan, host: int) -> list[Manifest]:
    """What one host sees of the Secret: its own key, and no other."""
    own = _host(group, host)
    files = {
        keys.TLS_AUTHORITY: keys.TLS_AUTHORITY,
        _certificate_entry(own): keys.TLS_CERTIFICATE,
        _key_entry(own): keys.TLS_KEY,
    }
    return [{"key": entry, "path": path} for entry, path in files.items()]


def tls_size_problem(context: JobContext) -> str | None:
    """Why the certificates do not fit into a Secret; None when they do, or none are asked for."""
    if not context.spec.data_buffer.tls:
        return None
    hosts = list(_hosts(context))
    characters = sum(2 * len(host) + len(called) + len(context.name) for host, called in hosts)
    size = int(PAIR_BYTES * len(hosts) + BYTES_PER_CHARACTER * characters)
    if size <= MAX_BYTES:
        return None
    return (
        f"spec.dataBuffer.tls: the certificates of {len(hosts)} hosts have about {format_bytes(size)}, and a Secret "
        f"holds {format_bytes(MAX_BYTES)}: write false and encrypt the network between nodes, take fewer hosts, or "
        "shorter names for job and namespace"
    )


def _hosts(context: JobContext) -> Iterator[tuple[str, str]]:
    """Every host, and the name by which the others call it."""
    template = names.peers_template(context.name, context.namespace, keys.PORT_BUFFER)
    for group in context.plan.groups:
        for host in range(group.replicas):
            address = template.format(job=context.name, group=group.name, host=host)
            yield _host(group, host), address.rpartition(":")[0]


def _host(group: GroupPlan, host: int) -> str:
    return f"{group.name}-{host}"


def _certificate_entry(host: str) -> str:
    return f"{host}.crt"


def _key_entry(host: str) -> str:
    return f"{host}.key"
