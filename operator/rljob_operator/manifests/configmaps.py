"""ConfigMaps: the plan, and the rank table that a vendor's stack fills."""

from __future__ import annotations

from rljob_api.vocabulary import keys
from rljob_api.vocabulary.quantity import format_bytes
from rljob_operator import names
from rljob_operator.manifests.context import JobContext, Manifest
from rljob_operator.manifests.metadata import metadata
from rljob_operator.manifests.pod.volumes import rank_table_name

MAX_BYTES = 1 << 20
"""The API server takes no larger ConfigMap."""

METADATA_BYTES = 4096
"""What name, labels and owner take besides the plan, generously."""


def plan_config_map(context: JobContext) -> Manifest:
    """Immutable: what a running pod reads cannot change under it."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(context, names.plan_config_map_name(context.name, context.plan_hash), "plan"),
        "immutable": True,
        "data": {keys.PLAN_KEY: context.written.text},
    }


def plan_size_problem(context: JobContext) -> str | None:
    """Why the plan does not fit into a ConfigMap; None when it does."""
    size = len(context.written.text.encode())
    if size + METADATA_BYTES <= MAX_BYTES:
        return None
    largest = max(((name, len(str(value))) for name, value in context.spec.to_json().items()), key=lambda item: item[1])
    return (
        f"the plan has {format_bytes(size)} ({size} bytes), and a ConfigMap holds {format_bytes(MAX_BYTES)}; "
        f"most of it is spec.{largest[0]} with {format_bytes(largest[1])}: make that shorter"
    )


def rank_tables(context: JobContext, attempt: int) -> list[Manifest]:
    """One for each vendor of the job that fills such a table; created once for an attempt, then theirs."""
    result = {}
    for group in context.plan.gang:
        table = context.profile(group).rank_table
        if table is not None:
            name = rank_table_name(context, table.config_map, attempt)
            result[name] = {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": metadata(context, name, "rank-table", table.labels),
                "data": {table.key: table.initial},
            }
    return list(result.values())
