"""Slurm's lists of nodes, such as `gpu[01-03,7],login`, written out. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rljob_worker.errors import InvalidJob

MAX_NODES = 65_536

_PART = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def expanded(nodes: str) -> tuple[str, ...]:
    """Names in the list's order. Raises InvalidJob for what is not a list.

    gpu[01-03,7],login  ->  gpu01 gpu02 gpu03 gpu7 login
    """
    parts = _PART.findall(nodes)
    if not nodes or ",".join(parts) != nodes:
        raise _malformed(nodes)
    result = []
    for part in parts:
        for name in _names(part, nodes):
            result.append(name)
            if len(result) > MAX_NODES:
                raise InvalidJob(f"the list of nodes {nodes[:80]!r} has more than {MAX_NODES:,} of them")
    return tuple(result)


def _names(part: str, nodes: str) -> Iterator[str]:
    brackets = _BRACKETS.search(part)
    if brackets is None:
        yield part
        return
    for number in _numbers(brackets[1], nodes):
        for rest in _names(part[brackets.end() :], nodes) if brackets.end() < len(part) else ("",):
            yield f"{part[: brackets.start()]}{number}{rest}"


def _numbers(text: str, nodes: str) -> Iterator[str]:
    """`01-03,7` as 01 02 03 7: as wide as the first of a range is written."""
    for word in text.split(","):
        match = _RANGE.fullmatch(word)
        if match is None:
            raise _malformed(nodes)
        first, last = match[1], match[2] or match[1]
        for number in range(int(first), int(last) + 1):
            yield str(number).zfill(len(first))


def _malformed(nodes: str) -> InvalidJob:
    return InvalidJob(f"{nodes[:80]!r} is not a list of nodes as Slurm writes them, such as gpu[01-16]")
