"""What the types do not say of a value: how the API server merges lists, and where it looks no further."""

from __future__ import annotations

from rljob_api.crd.places import at
from rljob_api.crd.structural import Schema

LIST_KEYS = {
    "spec.models": "name",
    "spec.rewards": "name",
    "spec.services": "name",
    "spec.workerGroups": "name",
    "spec.dag.stages": "name",
    "spec.env": "name",
    "status.conditions": "type",
    "status.workerGroups": "name",
    "status.services": "name",
    "status.progress.metrics": "name",
}
"""Lists whose entries have names of their own: the API server refuses a name that comes twice, and merges by name."""

_OPEN: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_TEXTS: Schema = {"type": "object", "maxProperties": 64, "additionalProperties": {"type": "string", "maxLength": 65536}}

# The API server's own schema of a pod template would cost 62 kB without descriptions, demand fields (`containers`)
# that a template merged over ours need not have, and be that of one Kubernetes version: a field newer than it would be
# cut off. So the template is open below `spec`. A misspelt field there is noticed when the operator makes the pod, with
# strict field validation and the API server's own words.
TEMPLATE: Schema = {
    "type": "object",
    "properties": {
        "metadata": {"type": "object", "properties": {"labels": _TEXTS, "annotations": _TEXTS}},
        "spec": _OPEN,
    },
}


def annotate(schema: Schema) -> None:
    """Put it all into the schema."""
    for path, key in LIST_KEYS.items():
        at(schema, path).update({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]})
    for path in ("spec.workerGroups[].template", "spec.services[].workerGroup.template"):
        template = at(schema, path)
        template.pop("x-kubernetes-preserve-unknown-fields")
        template.update(TEMPLATE)
