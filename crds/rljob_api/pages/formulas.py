"""Sentence, formula and papers of the worker's algorithm functions, read from their source without importing it.

Their docstrings have one order: a sentence, the formula, the papers, arguments. A registered function that only hands
the job's options on names the function it hands them to first, in backticks: `gspo` with the bounds of the job.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_ADDRESS = re.compile(r"https?://[^\s,;)]+")
_HANDED_TO = re.compile(r"`(\w+)`")

Place = tuple[str, str]
"""(registry, name)."""


@dataclass(frozen=True)
class Explanation:
    """What a docstring says before it comes to arguments."""

    sentence: str
    formula: tuple[str, ...]
    """Its lines."""
    papers: tuple[str, ...]


def explanations(folder: Path) -> Mapping[Place, Explanation]:
    """What every registered part below a folder is explained by."""
    files = [path for path in sorted(folder.rglob("*.py")) if "tests" not in path.relative_to(folder).parts]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in files]
    docstrings = [dict(_docstrings(tree)) for tree in trees]
    everywhere = {name: text for docstring in docstrings for name, text in docstring.items()}
    result: dict[Place, Explanation] = {}
    for tree, here in zip(trees, docstrings, strict=True):
        for place, definition in _registered(tree):
            text = here[definition]
            handed_to = _HANDED_TO.match(text)
            if handed_to is not None:
                text = {**everywhere, **here}[handed_to[1]]
            result[place] = _explanation(text)
    return result


def _docstrings(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name, ast.get_docstring(node) or ""


def _registered(tree: ast.Module) -> Iterator[tuple[Place, str]]:
    """What is registered, and the function or class that it is, decorated or called."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield from ((place, node.name) for item in node.decorator_list if (place := _place(item)) is not None)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            place, (part, *_) = _place(node.value.func), node.value.args
            if place is not None and isinstance(part, ast.Call) and isinstance(part.func, ast.Name):
                yield place, part.func.id


def _place(node: ast.expr) -> Place | None:
    """(registry, name) of `REGISTRY.register("NAME", …)`."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "register"):
        return None
    registry, name = node.func.value, node.args[0]
    assert isinstance(registry, ast.Name) and isinstance(name, ast.Constant)
    return registry.id, str(name.value)


def _explanation(docstring: str) -> Explanation:
    paragraphs = [paragraph.splitlines() for paragraph in docstring.split("\n\n")]
    formula = [line.strip() for line in paragraphs[1]] if len(paragraphs) > 1 else []
    return Explanation(" ".join(paragraphs[0]), tuple(formula), tuple(_ADDRESS.findall(docstring)))
