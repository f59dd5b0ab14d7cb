"""From pydantic's JSON schema to the structural OpenAPI schema that an API server takes; places in a schema.  Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rljob_api.vocabulary.model import ApiModel

Schema = dict[str, Any]

_CARRIED = (
    "type",
    "anyOf",
    "description",
    "enum",
    "pattern",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "minimum",
    "maximum",
    "multipleOf",
    "nullable",
    "default",
)
"""Keywords that mean the same in both.  `title` repeats names; `additionalProperties: false` may not stand beside
properties, and the API server reports unknown fields without it."""


def structural_schema(model: type[ApiModel]) -> Schema:
    """The schema of a model: references inlined, one type per value, every text bounded.

    A field that may be None in Python may be null here, and rules take a null for an absent field, as `has()` does.
    """
    document = model.model_json_schema(by_alias=True)
    longest = model.model_config["str_max_length"]
    assert longest is not None
    return _Conversion(document.get("$defs", {}), longest).convert(document)


def without_defaults(schema: Schema) -> Schema:
    """The schema of what a program writes in full: nothing is filled in for it."""
    return {key: _without_defaults_below(key, value) for key, value in schema.items() if key != "default"}


def _without_defaults_below(key: str, value: Any) -> Any:
    if key == "properties":
        return {name: without_defaults(item) for name, item in value.items()}
    return without_defaults(value) if key in ("items", "additionalProperties") and isinstance(value, dict) else value


class _Conversion:
    """One document: its definitions and the bound of texts that have none of their own."""

    def __init__(self, definitions: Schema, max_length: int) -> None:
        self._definitions, self._max_length = definitions, max_length

    def convert(self, node: Schema) -> Schema:
        node = _one_type(self._resolved(node))
        if not node.keys() & {"type", "enum", "x-kubernetes-int-or-string"}:
            return {"x-kubernetes-preserve-unknown-fields": True, **_described(node)}
        schema = {key: node[key] for key in _CARRIED if key in node}
        schema |= {key: value for key, value in node.items() if key.startswith("x-kubernetes-")}
        schema |= self._children(node)
        return schema | _bounds(node) | self._of_type(schema)

    def _resolved(self, node: Schema) -> Schema:
        """References and unions with null replaced by what they stand for; what the field itself says goes first."""
        if "$ref" in node:
            target = self._definitions[node["$ref"].rpartition("/")[2]]
            return {**self._resolved(target), **{key: value for key, value in node.items() if key != "$ref"}}
        if "anyOf" in node:
            (other,) = (item for item in node["anyOf"] if item != {"type": "null"})
            outer = {key: value for key, value in node.items() if key != "anyOf" and (key, value) != ("default", None)}
            return {**self._resolved(other), **outer, "nullable": True}
        return node

    def _children(self, node: Schema) -> Schema:
        children: Schema = {}
        if "properties" in node:
            children["properties"] = {name: self.convert(item) for name, item in node["properties"].items()}
            if "required" in node:
                children["required"] = node["required"]
        elif isinstance(node.get("additionalProperties"), dict):
            children["additionalProperties"] = self.convert(node["additionalProperties"])
        elif node.get("type") == "object":
            children["x-kubernetes-preserve-unknown-fields"] = True
        if "items" in node:
            children["items"] = self.convert(node["items"])
        return children

    def _of_type(self, schema: Schema) -> Schema:
        """What a type has besides: bounded texts, whole numbers of 64 bits, objects whose fields have the defaults."""
        kind = schema.get("type")
        if kind == "string" and "enum" not in schema:
            return {"maxLength": schema.get("maxLength", self._max_length)}
        if kind == "integer":
            return {"format": "int64"}
        if kind == "object" and "default" in schema:
            return {"default": {}}
        return {"default": _without_nulls(schema["default"])} if "default" in schema else {}


def _one_type(node: Schema) -> Schema:
    if "const" in node:
        return {**{key: value for key, value in node.items() if key != "const"}, "enum": [node["const"]]}
    if node.get("x-kubernetes-int-or-string"):
        either = [{"type": "integer"}, {"type": "string"}]
        return {**{key: value for key, value in node.items() if key != "type"}, "anyOf": either}
    return node


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _described(node: Schema) -> Schema:
    return {"description": node["description"]} if "description" in node else {}


def _bounds(node: Schema) -> Schema:
    """JSON Schema's exclusive bounds are numbers, OpenAPI's are flags."""
    bounds: Schema = {}
    for side in ("minimum", "maximum"):
        exclusive = "exclusive" + side.capitalize()
        if exclusive in node:
            bounds |= {side: node[exclusive], exclusive: True}
    return bounds


def schema_at(schema: Schema, path: str) -> Schema:
    """The schema at a path such as `spec.workerGroups[].template`; KeyError for a field that the types do not have."""
    for part in path.split(".") if path else ():
        name, _, of_items = part.partition("[]")
        schema = schema["properties"][name]
        for _ in range(part.count("[]")):
            schema = schema["items"]
        assert not of_items.strip("[]"), path
    return schema


def walk(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """(path, schema) of every value, the outer ones first."""
    yield path, schema
    for name, below in schema.get("properties", {}).items():
        yield from walk(below, f"{path}.{name}" if path else name)
    if "items" in schema:
        yield from walk(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from walk(schema["additionalProperties"], f"{path}.*")
