"""JSON schemas for kubeconform, from the OpenAPI document in the Kubernetes module: no web site is asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Schema = dict[str, Any]

LOCATION = "{{.ResourceKind}}{{.KindSuffix}}.json"
"""How kubeconform finds a kind's file in the folder."""

_DEFINITIONS = "_definitions.json"


def write_schemas(swagger: Path, folder: Path) -> None:
    """One file for every kind, and one that they refer to.  Fields that Kubernetes does not know are mistakes."""
    definitions = json.loads(swagger.read_text())["definitions"]
    for name, definition in definitions.items():
        for kind in definition.get("x-kubernetes-group-version-kind", ()):
            group = kind["group"].partition(".")[0]
            path = folder / ("-".join(filter(None, (kind["kind"], group, kind["version"]))).lower() + ".json")
            path.write_text(json.dumps({"$ref": f"{_DEFINITIONS}#/definitions/{name}"}))
    closed = {name: _closed(definition) for name, definition in definitions.items()}
    (folder / _DEFINITIONS).write_text(json.dumps({"definitions": closed}))


def _closed(definition: Schema) -> Schema:
    if definition.get("format") == "int-or-string":
        return {"type": ["string", "integer"]}
    if "properties" in definition and "additionalProperties" not in definition:
        return {**definition, "additionalProperties": False}
    return definition
