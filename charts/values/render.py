"""From the model of the values to the files of the chart.  Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import fill
from typing import Any

import yaml
from pydantic.fields import FieldInfo

from charts.values.model import ELSEWHERE, ChartValues
from rljob_api.vocabulary.model import ApiModel, field_descriptions
from rljob_operator.manifests.pod_security import baseline, restricted
from rljob_operator.manifests.violations.pods import FAILING_NODES, FIELDS

Schema = dict[str, Any]

HEADER = "# Made by `make chart` from charts/values/model.py, whose words and defaults these are.\n"
FACTS_HEADER = "# Made by `make chart` from rljob_operator/manifests: what pods may have, in the ceilings' policies.\n"
WIDTH = 118


@dataclass(frozen=True)
class ValueEntry:
    """One value that a user may set, or a group of them."""

    path: str
    text: str
    default: Any
    """As JSON; None for a group."""
    is_group: bool

    @property
    def depth(self) -> int:
        return self.path.count(".")

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]


def entries(model: ApiModel, path: str = "") -> Iterator[ValueEntry]:
    """Every value below `model`, groups before what is in them."""
    texts = field_descriptions(type(model))
    for name, field in type(model).model_fields.items():
        place = f"{path}.{_spelling(name, field)}".removeprefix(".")
        if place in ELSEWHERE:
            continue
        value = getattr(model, name)
        is_group = isinstance(value, ApiModel)
        yield ValueEntry(place, " ".join(texts[name].split()), None if is_group else _plain(value), is_group)
        if is_group:
            yield from entries(value, place)


def values_yaml() -> str:
    """values.yaml: every value with its meaning above it."""
    lines = [HEADER.rstrip()]
    for entry in entries(ChartValues()):
        indent = "  " * entry.depth
        if not entry.depth or entry.is_group:
            lines.append("")
        lines.append(fill(entry.text, WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# "))
        lines.append(f"{indent}{entry.name}:{'' if entry.is_group else f' {_flow(entry.default)}'}")
    return "\n".join(lines) + "\n"


def values_schema() -> str:
    """values.schema.json: closed, so that helm refuses a misspelt value by its place."""
    schema = ChartValues.model_json_schema(by_alias=True)
    for path in ELSEWHERE:
        holder, _, name = path.rpartition(".")
        del _definition(schema, holder)["properties"][name]
    del schema["$defs"]["AcceleratorProfile"]["properties"]["name"]  # the key says it
    for definition in (schema, *schema["$defs"].values()):
        definition.pop("required", None)
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, indent=1) + "\n"


def values_table() -> str:
    """The README's table of values."""
    rows = ["| value | default | meaning |", "|---|---|---|"]
    for entry in entries(ChartValues()):
        if not entry.is_group:
            rows.append(f"| `{entry.path}` | `{json.dumps(entry.default)}` | {entry.text.replace('|', '/')} |")
    return "\n".join(rows) + "\n"


def ceilings_data() -> str:
    """What the operator's ceilings and the chart's policies have in common: lists of what is allowed."""
    data = {
        "fields": {place or "pod": [*names] for place, names in FIELDS.items()},
        "failingNodes": [*FAILING_NODES],
        "capabilities": [*baseline.CAPABILITIES],
        "profiles": [*baseline.PROFILES],
        "seLinuxTypes": [{"since": since, "names": [*names]} for since, names in baseline.SELINUX_TYPES.items()],
        "sysctls": [{"since": since, "names": [*names]} for since, names in baseline.SYSCTLS.items()],
        "volumes": [*restricted.VOLUMES],
        "probes": [*baseline.PROBES],
        "hooks": [*baseline.HOOKS],
    }
    return FACTS_HEADER + yaml.safe_dump(data, sort_keys=False, width=WIDTH)


def image_list(version: str) -> str:
    """Every image that an installation with default values can need, one a line."""
    images = (value for _, value in ChartValues().images if isinstance(value, ApiModel))
    return "".join(f"{image.to_json()['repository']}:{version}\n" for image in images)


def _definition(schema: Schema, path: str) -> Schema:
    result = schema
    for name in path.split("."):
        below = result["properties"][name]
        result = schema["$defs"][below["$ref"].rpartition("/")[2]]
    return result


def _spelling(name: str, field: FieldInfo) -> str:
    return field.alias or name


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _flow(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000).removesuffix("...\n").strip()
