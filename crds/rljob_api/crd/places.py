"""Finding a place in a schema by its path, as in `spec.workerGroups[].template`."""

from __future__ import annotations

from collections.abc import Iterator

from rljob_api.crd.structural import Schema


def at(schema: Schema, path: str) -> Schema:
    """The schema below `path`; KeyError for a field that the types do not have."""
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
