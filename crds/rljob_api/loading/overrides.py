"""`--set PATH=VALUE`: changes to a document before it is checked."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable
from typing import Any

import yaml

from rljob_api.loading.document import read_value
from rljob_api.vocabulary.problem import Problem

_TOP = ("apiVersion", "kind", "metadata", "spec")


def apply_overrides(data: Any, overrides: Iterable[str]) -> tuple[Any, list[Problem]]:
    """A copy of `data` with each `a.b[0].c=VALUE` set, and the overrides that cannot be.

    Segments are fields, or indices of lists from 0, as `[0]` or `.0`; one past the end appends.  A path that does not
    begin with apiVersion, kind, metadata or spec begins in spec: `stop.steps=5` is `spec.stop.steps=5`.  Values are
    YAML.
    """
    changed, problems = copy.deepcopy(data), []
    for override in overrides:
        try:
            _set(changed, override)
        except _CannotSetError as error:
            problems.append(Problem(f"--set {override}", "", str(error), "Write --set stop.steps=5."))
    return changed, problems


def written_by(path: str, overrides: Iterable[str]) -> str | None:
    """The last override that wrote what stands at `path`, as problems spell it, or a part of a field's options there;
    None where none did."""
    found = None
    for override in overrides:
        place = "".join(f"[{each}]" if each.isdecimal() else f".{each}" for each in _segments(override)).lstrip(".")
        if _holds(place, path) or (path.endswith(".options") and _holds(path, place)):
            found = override
    return found


def _holds(place: str, path: str) -> bool:
    return path == place or path.startswith((f"{place}.", f"{place}["))


class _CannotSetError(ValueError):
    pass


def _segments(override: str) -> list[str]:
    """From the top of the document."""
    path = re.sub(r"\[([0-9]+)\]", r".\1", override.partition("=")[0].strip())
    segments = path.split(".")
    return segments if segments[0] in _TOP else ["spec", *segments]


def _set(data: Any, override: str) -> None:
    path, equals, text = override.partition("=")
    segments = _segments(override)
    if not equals or not all(segments):
        raise _CannotSetError("an override is PATH=VALUE")
    try:
        value = read_value(text)
    except yaml.YAMLError as error:
        raise _CannotSetError(f"the value is not YAML: {getattr(error, 'problem', error)}") from error
    holder = data
    for i, segment in enumerate(segments[:-1]):
        holder = _step(holder, segment, ".".join(segments[: i + 1]))
    _assign(holder, segments[-1], value, path)


def _step(holder: Any, segment: str, path: str) -> Any:
    if isinstance(holder, dict):
        if holder.get(segment) is None:
            holder[segment] = {}
        return holder[segment]
    if isinstance(holder, list):
        return holder[_index(segment, len(holder) - 1, path)]
    raise _CannotSetError(f"{path} is inside a plain value")


def _assign(holder: Any, segment: str, value: Any, path: str) -> None:
    if isinstance(holder, dict):
        holder[segment] = value
    elif isinstance(holder, list):
        index = _index(segment, len(holder), path)
        holder[index : index + 1] = [value]
    else:
        raise _CannotSetError(f"{path} is inside a plain value")


def _index(segment: str, largest: int, path: str) -> int:
    if not segment.isdecimal() or int(segment) > largest:
        raise _CannotSetError(f"{path} is in a list; write an index from 0 to {largest}")
    return int(segment)
