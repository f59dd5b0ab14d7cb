"""The whole CustomResourceDefinition, as an object and as text."""

from __future__ import annotations

from typing import Any

import yaml

from rljob_api.crd.rules import add_rules
from rljob_api.crd.structural import Schema, schema_at, structural_schema, without_defaults
from rljob_api.v1alpha1 import RLJobSpec, RLJobStatus
from rljob_api.vocabulary.keys import GROUP, KIND, PLURAL, SHORT_NAME, VERSION

NAME = f"{PLURAL}.{GROUP}"

COLUMNS = (
    {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
    {"name": "Step", "type": "integer", "jsonPath": ".status.progress.step"},
    {"name": "Reward", "type": "string", "jsonPath": ".status.progress.reward"},
    {"name": "Ready", "type": "string", "jsonPath": ".status.ready"},
    {"name": "Restarts", "type": "integer", "jsonPath": ".status.restarts"},
    {"name": "Attempt", "type": "integer", "jsonPath": ".status.attempt", "priority": 1},
    {
        "name": "Services",
        "type": "string",
        "jsonPath": '.status.conditions[?(@.type=="ServicesReady")].status',
        "priority": 1,
        "description": "Whether every model beside the job answers.",
    },
    {"name": "Provider", "type": "string", "jsonPath": ".spec.scheduling.provider", "priority": 1},
    {"name": "Queue", "type": "string", "jsonPath": ".spec.scheduling.queue", "priority": 1},
    {
        "name": "ETA",
        "type": "integer",
        "jsonPath": ".status.progress.estimatedRemainingSeconds",
        "priority": 1,
        "description": "Seconds until the last step is done, at the pace of the recent ones.",
    },
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
)
"""What `kubectl get rlj` shows; priority 1 only with `-o wide`."""

SCALE = {
    "specReplicasPath": ".spec.generators",
    "statusReplicasPath": ".status.generators",
    "labelSelectorPath": ".status.generatorSelector",
}
"""What `kubectl scale` and autoscalers read and write: the pods of the elastic group."""

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
    "status.generatorPods": "index",
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


def definition() -> dict[str, Any]:
    """The CustomResourceDefinition."""
    names = {"kind": KIND, "listKind": f"{KIND}List", "plural": PLURAL, "singular": KIND.lower()}
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}, "scale": SCALE},
        "additionalPrinterColumns": list(COLUMNS),
        "schema": {"openAPIV3Schema": object_schema()},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {**names, "shortNames": [SHORT_NAME], "categories": ["all", "rljob"]},
            "versions": [version],
        },
    }


def object_schema() -> Schema:
    """The schema of an RLJob.  Metadata is the API server's; its rules stand at the root."""
    schema: Schema = {
        "type": "object",
        "description": "A reinforcement-learning job.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object", "properties": {"name": {"type": "string"}}},
            "spec": structural_schema(RLJobSpec),
            "status": without_defaults(structural_schema(RLJobStatus)),
        },
    }
    annotate(schema)
    add_rules(schema)
    return schema


def definition_text() -> str:
    """The file that `kubectl apply -f` takes."""
    return _HEADER + yaml.safe_dump(definition(), sort_keys=False, width=120, allow_unicode=True)


def chart_text() -> str:
    """The definition as a template of the Helm chart, where an upgrade replaces it and an uninstall may leave it."""
    plain = yaml.safe_dump(definition(), sort_keys=False, width=120, allow_unicode=True)
    name = f"metadata:\n  name: {NAME}\n"
    assert plain.count(name) == 1 and "{{" not in plain
    return _CHART_HEADER + plain.replace(name, name + _CHART_METADATA) + "{{- end }}\n"


_HEADER = "# Made by `make crds` from the types in crds/rljob_api; not edited by hand.\n"
_CHART_HEADER = "{{- /* Made by `make crds` from the types in crds/rljob_api; not edited by hand. */}}\n"
_CHART_HEADER += "{{- if .Values.crds.enabled }}\n"
_CHART_METADATA = """\
  labels:
    {{- include "rljob.labels" . | nindent 4 }}
  {{- if .Values.crds.keep }}
  annotations:
    helm.sh/resource-policy: keep
  {{- end }}
"""


def annotate(schema: Schema) -> None:
    """Put into the schema how the API server merges lists, and where it looks no further: types do not say it."""
    for path, key in LIST_KEYS.items():
        schema_at(schema, path).update({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]})
    for path in ("spec.workerGroups[].template", "spec.services[].workerGroup.template"):
        template = schema_at(schema, path)
        template.pop("x-kubernetes-preserve-unknown-fields")
        template.update(TEMPLATE)
