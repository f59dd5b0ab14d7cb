"""YAML text -> plain values and the line of each, by the core schema of YAML 1.2: `no` is a word and 1e-6 a number."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from rljob_api.vocabulary.problem import Problem

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]
    """The fast parser with the implicit types of YAML 1.2 in place of those of 1.1."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^(~|null|Null|NULL|)$"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"^([-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$"), list("-+0123456789")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^([-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"),
    list("-+0123456789."),
)


@dataclass
class Document:
    """One YAML document: its value, the line of every path in it, and what is wrong with it as YAML."""

    value: Any = None
    lines: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def line_of(self, path: str) -> int | None:
        """Line of `path`, or of the nearest thing around it."""
        path = path.partition(" ")[0]
        while path:
            if path in self.lines:
                return self.lines[path]
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return None


def read_document(text: str) -> Document:
    """The only document of `text`.  Never raises: what is wrong is in `problems`."""
    try:
        if line := _line_too_deep(text):
            return Document(problems=[replace(_TOO_DEEP, line=line)])
        nodes = [node for node in yaml.compose_all(text, Loader=_Loader) if node is not None and node.value != ""]
    except yaml.YAMLError as error:
        return Document(problems=[_syntax_problem(error, text)])
    if len(nodes) != 1:
        fix = "Give every job its own file." if nodes else "Write apiVersion, kind, metadata and spec."
        line = nodes[1].start_mark.line + 1 if nodes else None
        return Document(problems=[Problem("", f"{len(nodes)} documents", "a file holds one job", fix, line)])
    builder = _Builder()
    try:
        value = builder.build(nodes[0], "")
    except _TooLargeError as error:
        return Document(problems=[error.problem])
    return Document(value, builder.lines, builder.problems)


def read_value(text: str) -> Any:
    """The value of one piece of YAML, such as the right side of `--set`.  Raises yaml.YAMLError."""
    if _line_too_deep(text):
        raise yaml.YAMLError(_TOO_DEEP.message)
    node = yaml.compose(text, Loader=_Loader)
    try:
        return None if node is None else _Builder().build(node, "")
    except _TooLargeError as error:
        raise yaml.YAMLError(str(error)) from error


MAX_DEPTH, MAX_NODES = 100, 100_000
"""Bounds of a job, whose largest has a few thousand nodes: aliases of aliases may make terabytes of a few lines."""

_TOO_DEEP = Problem("", "", f"it is nested more than {MAX_DEPTH} deep", "A job has less than 20 levels.")


def _line_too_deep(text: str) -> int | None:
    """Where it is; the composer calls itself at each level, until the process crashes. Raises yaml.YAMLError."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            assert event.start_mark is not None, "events of a text have places"
            return int(event.start_mark.line) + 1
    return None


def depth_problem(value: Any) -> Problem | None:
    """What is wrong with a document that was not read here, however deep it is nested."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [below for item in level for below in _below(item) if isinstance(below, Mapping | list)]
        if not level:
            return None
    return _TOO_DEEP


def _below(collection: Mapping[str, Any] | list[Any]) -> Iterable[Any]:
    return collection.values() if isinstance(collection, Mapping) else collection


class _TooLargeError(Exception):
    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class _Builder:
    """Builds values from nodes, noting lines and problems on the way. Raises _TooLargeError."""

    def __init__(self) -> None:
        self._num_nodes = 0
        self.lines: dict[str, int] = {}
        self.problems: list[Problem] = []
        self._open: set[int] = set()

    def build(self, node: yaml.Node, path: str) -> Any:
        self._count(node)
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if id(node) in self._open:
            self._problem(path, node, "", "an alias refers to something that contains it", "Write it out.")
            return None
        self._open.add(id(node))
        value = self._mapping(node, path) if isinstance(node, yaml.MappingNode) else self._sequence(node, path)
        self._open.remove(id(node))
        return value

    def _count(self, node: yaml.Node) -> None:
        self._num_nodes += 1
        line = node.start_mark.line + 1
        if len(self._open) > MAX_DEPTH:
            raise _TooLargeError(replace(_TOO_DEEP, line=line))
        if self._num_nodes > MAX_NODES:
            message = f"it has more than {MAX_NODES} values, with its aliases written out"
            raise _TooLargeError(Problem("", "", message, "Leave out what a job does not need.", line))

    def _sequence(self, node: yaml.Node, path: str) -> list[Any]:
        return [self.build(item, f"{path}[{i}]") for i, item in enumerate(node.value)]

    def _mapping(self, node: yaml.MappingNode, path: str) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value
            if not isinstance(key, str):
                self._problem(path, key_node, "", "a key must be a word", "Write KEY: VALUE.")
                continue
            below = f"{path}.{key}" if path else key
            if key in mapping:
                message = f"the key stands twice, first on line {self.lines[below]}"
                self._problem(below, key_node, key, message, "Keep one of the two.")
            else:
                self.lines[below] = key_node.start_mark.line + 1
                mapping[key] = self.build(value_node, below)
        return mapping

    def _scalar(self, node: yaml.ScalarNode, path: str) -> Any:
        convert = _SCALARS.get(node.tag)
        if convert is None:
            self._problem(path, node, node.tag, "the tag is not supported", "Leave it out.")
            return node.value
        try:
            return convert(node.value)
        except ValueError:
            self._problem(path, node, node.value, f"it is no {node.tag.rpartition(':')[2]}", "Leave the tag out.")
            return node.value

    def _problem(self, path: str, node: yaml.Node, result: str, message: str, fix: str) -> None:
        self.problems.append(Problem(path, result, message, fix, node.start_mark.line + 1))


def _integer(text: str) -> int:
    text = text[:1000]  # as much too large for every field; Python refuses more than 4,300 digits
    # int(text, 0) refuses 010, which is ten in YAML 1.2.
    return int(text, 0) if text[:2] in ("0x", "0o") else int(text)


def _float(text: str) -> float:
    # Only infinity and NaN have letters before which YAML wants a dot and Python none.
    return float(text.replace(".", "") if text.lower().endswith(("inf", "nan")) else text)


_SCALARS: Mapping[str, Any] = {
    "tag:yaml.org,2002:str": str,
    "tag:yaml.org,2002:int": _integer,
    "tag:yaml.org,2002:float": _float,
    "tag:yaml.org,2002:bool": lambda text: text.lower() == "true",
    "tag:yaml.org,2002:null": lambda _: None,
}


def _syntax_problem(error: yaml.YAMLError, text: str) -> Problem:
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return Problem("", "", f"this is not YAML: {error}", "Leave out what cannot be printed.")
    place = f"line {mark.line + 1}, column {mark.column + 1}"
    said = " ".join(part for part in (getattr(error, "context", None), getattr(error, "problem", None)) if part)
    fix = "Check indentation, colons, and quotes around special characters there."
    there = "".join(text.split("\n")[mark.line : mark.line + 1])[mark.column :]  # nothing behind the end
    if there.startswith("\t"):
        said, fix = "a tab, and only spaces indent", "Write spaces in its place."
    return Problem("", place, f"this is not YAML: {said}", fix, mark.line + 1)
