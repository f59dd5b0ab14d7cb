"""`--set PATH=VALUE`: changes to a document before it is checked."""

from __future__ import annotations

import copy
import re
from collections.abc import Container, Iterable, Sequence
from itertools import pairwise
from typing import Any

import yaml

from rljob_api.loading.document import read_value
from rljob_api.vocabulary.problem import Problem

_TOP = ("apiVersion", "kind", "metadata", "spec")


def apply_overrides(data: Any, overrides: Iterable[str]) -> tuple[Any, list[Problem]]:
    """A copy of `data` with each `a.b[0].c=VALUE` set, and the overrides that cannot be.

    Segments are fields, or indices of lists from 0, as `[0]` or `.0`; one past the end appends, and begins a list that
    is not there.  A path that does not begin with apiVersion, kind, metadata or spec begins in spec: `stop.steps=5` is
    `spec.stop.steps=5`.  Values are YAML.
    """
    changed, problems = copy.deepcopy(data), []
    for override in overrides:
        try:
            _set(changed, override)
        except _CannotSetError as error:
            problems.append(Problem(f"--set {override}", "", str(error), error.fix))
    return changed, problems


def written_by(path: str, overrides: Iterable[str], in_file: Container[str]) -> str | None:
    """The last override that wrote what stands at `path`, as problems spell it, or a part of a field's options there;
    None where none did. in_file: paths of the document, of which an override changes a part and does not write it."""
    result = None
    for override in overrides:
        place = _place(_segments(override))
        has_begun = path not in in_file or path.endswith(".options")
        if _holds(place, path) or (has_begun and _holds(path, place)):
            result = override
    return result


def _holds(place: str, path: str) -> bool:
    return path == place or path.startswith((f"{place}.", f"{place}["))


class _CannotSetError(ValueError):
    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.fix = fix


def _segments(override: str) -> list[str]:
    """From the top of the document."""
    path = re.sub(r"\[([^].]*)\]", r".\1", override.partition("=")[0].strip())
    segments = path.split(".")
    return segments if segments[0] in _TOP else ["spec", *segments]


def _place(segments: Sequence[str]) -> str:
    """As problems spell it."""
    return "".join(f"[{segment}]" if segment.isdecimal() else f".{segment}" for segment in segments).lstrip(".")


def _set(data: Any, override: str) -> None:
    _, equals, text = override.partition("=")
    segments = _segments(override)
    if not equals or not all(segments):
        raise _CannotSetError("an override is PATH=VALUE", "Write --set stop.steps=5.")
    try:
        value = read_value(text)
    except yaml.YAMLError as error:
        message = f"the value is not YAML: {getattr(error, 'problem', error)}"
        raise _CannotSetError(message, "Put a text with special characters into quotes of YAML.") from error
    holder = data
    for i, (segment, below) in enumerate(pairwise(segments)):
        holder = _step(holder, segment, [] if below == "0" else {}, _place(segments[:i]))
    _assign(holder, segments[-1], value, _place(segments[:-1]))


def _step(holder: Any, segment: str, empty: Any, place: str) -> Any:
    """What is at `segment` of what stands at `place`; `empty`, which is put there, where nothing is."""
    if isinstance(holder, dict):
        if holder.get(segment) is None:
            holder[segment] = empty
        return holder[segment]
    index = _index(holder, segment, place)
    if index == len(holder):
        holder.append(empty)
    return holder[index]


def _assign(holder: Any, segment: str, value: Any, place: str) -> None:
    if isinstance(holder, dict):
        holder[segment] = value
    else:
        index = _index(holder, segment, place)
        holder[index : index + 1] = [value]


def _index(holder: Any, segment: str, place: str) -> int:
    if not isinstance(holder, list):
        raise _CannotSetError(
            f"{place or 'the file'} is a plain value, of which nothing is a part", "Correct the path."
        )
    size = len(holder)
    if not segment.isdecimal() or int(segment) > size:
        message = f"{place or 'the file'} is a list of {size}, and {segment} is not an index of it"
        fix = f"Write {place}[0]." if size == 0 else f"Write an index from 0 to {size - 1}, or {size} to append."
        raise _CannotSetError(message, fix)
    return int(segment)
