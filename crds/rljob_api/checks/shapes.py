"""Has a pod template, where the operator reads it, the shape of one?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rljob_api.checks.subject import problem
from rljob_api.vocabulary.problem import Problem
from rljob_api.vocabulary.quantity import amount

Shape = Mapping[str, Any] | Sequence[Any] | str
"""Fields that matter, or a list's entries, or one of the words below; `*` stands for every other field.

What entries of a list are merged by matters."""

_TEXTS: Shape = {"*": "text"}
_QUANTITIES: Shape = {"*": "quantity"}
_NAMED: Shape = {"name": "text"}
_SECURITY: Shape = {"capabilities": {"add": ["text"], "drop": ["text"]}, "seccompProfile": {}}
_RESOURCES: Shape = {"requests": _QUANTITIES, "limits": _QUANTITIES, "claims": [_NAMED]}
_CONTAINER: Shape = {
    "env": [{"name": "text"}],
    "ports": [{"containerPort": "number", "protocol": "text"}],
    "volumeMounts": [{"mountPath": "text"}],
    "volumeDevices": [{"devicePath": "text"}],
    "resources": _RESOURCES,
    "securityContext": _SECURITY,
}
_POD: Shape = {
    "metadata": {"labels": _TEXTS, "annotations": _TEXTS},
    "spec": {
        "containers": [_CONTAINER],
        "initContainers": [_CONTAINER],
        "resources": _RESOURCES,
        "volumes": [{}],
        "tolerations": [{"key": "text", "effect": "text"}],
        "topologySpreadConstraints": [{"topologyKey": "text"}],
        "imagePullSecrets": [_NAMED],
        "resourceClaims": [_NAMED],
        "hostAliases": [{"ip": "text"}],
        "schedulingGates": [{}],
        "nodeSelector": _TEXTS,
        "securityContext": _SECURITY,
    },
}


def shape_problems(template: Mapping[str, Any], path: str) -> Iterator[Problem]:
    """What is not a mapping, list, text or number where a pod has one; an empty field is one that is not there."""
    yield from _problems(template, _POD, path)


def _problems(result: Any, shape: Shape, path: str) -> Iterator[Problem]:
    if isinstance(shape, str):
        yield from _value_problems(result, shape, path)
    elif isinstance(shape, Mapping):
        yield from _mapping_problems(result, shape, path)
    elif not isinstance(result, list):
        yield problem(path, result, "this is not a list", "Write it as in a Pod.")
    else:
        for i, item in enumerate(result):
            yield from _problems(item, shape[0], f"{path}[{i}]")


def _mapping_problems(result: Any, shape: Mapping[str, Any], path: str) -> Iterator[Problem]:
    if not isinstance(result, Mapping):
        yield problem(path, result, "this is not a mapping", "Write it as in a Pod.")
        return
    for name, value in result.items():
        inner = shape.get(name, shape.get("*"))
        if inner is not None and value is not None:
            yield from _problems(value, inner, f"{path}.{name}")


def _value_problems(result: Any, kind: str, path: str) -> Iterator[Problem]:
    if kind == "text" and not isinstance(result, str):
        yield problem(path, result, "this is not a text", "Write it in quotes.")
    if kind == "number" and (isinstance(result, bool) or not isinstance(result, int)):
        yield problem(path, result, "this is not a whole number", "Write it without quotes.")
    if kind == "quantity":
        try:
            if isinstance(result, bool):
                raise ValueError
            amount(result)
        except ValueError:
            yield problem(path, result, "this is not a quantity", "Write it as 500m, 2 or 16Gi.")
