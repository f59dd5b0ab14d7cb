"""Every mutant of a module: which nodes are looked at, and how a mutant is identified."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass, replace

from mutation.operators import OPERATORS
from mutation.source import Edit, MutatedSource

_SNIPPET = 60
_NOT_MUTATED = (ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal, ast.FormattedValue)


@dataclass(frozen=True)
class Mutant:
    """A module with one mistake."""

    scope: str
    """Function or class it stands in, `Graph.cycle`; empty at module level."""
    line: str
    """The source line on which the mistake begins, without indentation."""
    change: str
    """`old -> new`; with ` #2` where the same change is possible a second time on this line."""
    line_number: int
    operator: str
    text: str
    """The whole module."""

    @property
    def key(self) -> tuple[str, str, str]:
        """What names it: stays the same while other lines change."""
        return self.scope, self.line, self.change

    def diff(self, original: str) -> str:
        """Lines that differ, `-` before and `+` after."""
        lines = difflib.unified_diff(original.splitlines(), self.text.splitlines(), n=0, lineterm="")
        return "\n".join(list(lines)[3:])


def mutants_of(text: str) -> list[Mutant]:
    """All mutants of a module, each with another tree than the module, in source order."""
    source = MutatedSource(text)
    tree = ast.parse(text)
    original = ast.dump(tree)
    result: list[Mutant] = []
    names: dict[tuple[str, str, str], int] = {}
    for scope, node in _sites(tree, ""):
        for operator in OPERATORS:
            for edit in operator(source, node):
                mutant = _mutant(source, scope, edit)
                if ast.dump(ast.parse(mutant.text)) == original:
                    continue
                names[mutant.key] = count = names.get(mutant.key, 0) + 1
                result.append(mutant if count == 1 else replace(mutant, change=f"{mutant.change} #{count}"))
    return sorted(result, key=lambda item: item.line_number)


def _mutant(source: MutatedSource, scope: str, edit: Edit) -> Mutant:
    line_number = source.data[: edit.start].count(b"\n") + 1
    line = source.text.split("\n")[line_number - 1].strip()
    change = f"{_snippet(source.between(edit.start, edit.end))} -> {_snippet(edit.text)}"
    return Mutant(scope, line, change, line_number, edit.operator, source.edited(edit))


def _snippet(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= _SNIPPET else f"{words[: _SNIPPET - 2]}.."


def _sites(node: ast.AST, scope: str) -> Iterator[tuple[str, ast.AST]]:
    """Nodes that are run, with the scope they stand in: no docstrings, annotations, decorators, imports.

    Not the inside of f-strings either, whose columns Python 3.11 does not tell.
    """
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        scope = f"{scope}.{node.name}" if scope else node.name
    for child in _children(node):
        yield scope, child
        yield from _sites(child, scope)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    skipped = {id(item) for item in _not_run(node)}
    for child in ast.iter_child_nodes(node):
        if id(child) not in skipped and not isinstance(child, _NOT_MUTATED) and not _is_remark(child):
            yield child


def _not_run(node: ast.AST) -> list[ast.AST]:
    """Children that are for readers and type checkers."""
    if isinstance(node, ast.JoinedStr):
        return list(node.values)
    annotations = [getattr(node, "annotation", None), getattr(node, "returns", None)]
    return [*getattr(node, "decorator_list", []), *(annotation for annotation in annotations if annotation is not None)]


def _is_remark(node: ast.AST) -> bool:
    """A docstring, `...`, `if TYPE_CHECKING:` or `__all__ = ...`."""
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    if isinstance(node, ast.Assign):
        return any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets)
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
