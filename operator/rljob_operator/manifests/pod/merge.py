"""A user's pod template over ours, as a strategic merge does it."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

MERGE_KEYS: Mapping[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "volumes": ("name",),
    "env": ("name",),
    "imagePullSecrets": ("name",),
    "resourceClaims": ("name",),
    "claims": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "ports": ("containerPort", "protocol"),
    "hostAliases": ("ip",),
    "tolerations": ("key", "effect"),
    "topologySpreadConstraints": ("topologyKey",),
}
"""Fields that are lists of entries with a name, and what names an entry; every other list is replaced as a whole."""

UNIONS = frozenset({"volumes", "env"})
"""Lists whose entries hold one of several fields: a new kind of volume, or a value in place of a reference, leaves
nothing of the old."""


def merge(ours: Any, theirs: Any, field: str = "") -> Any:
    """`theirs` over `ours`: mappings field by field, named entries by name, null deletes, all else replaces."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return _merge_mappings(ours, theirs)
    if isinstance(ours, list) and isinstance(theirs, list) and field in MERGE_KEYS:
        return _merge_entries(ours, theirs, field)
    return without_nulls(theirs)


def without_nulls(value: Any) -> Any:
    """A copy in which nothing is null: a field that is written and left empty is one that is not there."""
    if isinstance(value, dict):
        return {name: without_nulls(item) for name, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value if item is not None]
    return deepcopy(value)


def _merge_mappings(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    merged = {name: value for name, value in ours.items() if name not in theirs}
    for name, value in theirs.items():
        if value is not None:
            merged[name] = merge(ours.get(name), value, name)
    return {name: merged[name] for name in dict.fromkeys((*ours, *theirs)) if name in merged}


def _merge_entries(ours: list[Any], theirs: list[Any], field: str) -> list[Any]:
    merged = {_key(entry, field): entry for entry in ours}
    for entry in theirs:
        key = _key(entry, field)
        if key not in merged:
            merged[key] = without_nulls(entry)
        else:
            merged[key] = merge(_kept(merged[key], entry, field), entry)
    return list(merged.values())


def _kept(ours: dict[str, Any], theirs: dict[str, Any], field: str) -> dict[str, Any]:
    return {name: value for name, value in ours.items() if name in theirs} if field in UNIONS else ours


def _key(entry: Any, field: str) -> tuple[Any, ...]:
    defaults = {"protocol": "TCP"}
    return tuple(entry.get(name, defaults.get(name)) for name in MERGE_KEYS[field])
