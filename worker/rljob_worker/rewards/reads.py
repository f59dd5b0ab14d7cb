"""What a reward certainly reads of a row, by its source: names that no row has would end the job at its first row."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Collection, Iterator
from typing import Any

from rljob_worker.errors import InvalidJob
from rljob_worker.rewards.forms import columns_by_name

_MAYBE = (ast.IfExp, ast.BoolOp, ast.Lambda, ast.NamedExpr)
"""What is inside may never be computed, or of other names."""
_COMPREHENSIONS = (ast.GeneratorExp, ast.ListComp, ast.SetComp, ast.DictComp)
"""Comprehensions: only what the first loop goes over is always computed."""
_SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.Expr)


def check_row_reads(
    owner: str, run: str, function: Callable[..., Any], columns: Collection[str], options: Collection[str]
) -> None:
    """Raises InvalidJob for `row["name"]`, or `kwargs["name"]` of a function in another trainer's form, that is read of
    every row and that none has. columns: what a row has of the data.   options: names of the reward's."""
    by_name = columns_by_name(function, columns, options)
    for name, line in certain_reads(function, by_name.parameter) if by_name else ():
        if by_name and name not in by_name.names:
            raise InvalidJob(
                f"{owner}: {run} reads {by_name.parameter}[{name!r}] in line {line}, and of the data rows have "
                f"{', '.join(sorted(columns))}; name the column under `column` of a reward"
            )


def certain_reads(function: Callable[..., Any], parameter: str) -> Iterator[tuple[str, int]]:
    """Constant keys that are read from this parameter whatever happens, and the lines of its file."""
    try:
        lines, first = inspect.getsourcelines(function)
        (definition,) = ast.parse(textwrap.dedent("".join(lines))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return
    if isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef):
        for expression in _always_computed(definition.body, parameter):
            for name, line in _keys(expression, parameter):
                yield name, first + line - 1


def _always_computed(body: list[ast.stmt], parameter: str) -> Iterator[ast.expr]:
    """Up to the first branch, or until the parameter may be another thing or have other entries."""
    for statement in body:
        result = [
            iter_child_node
            for iter_child_node in ast.iter_child_nodes(statement)
            if isinstance(iter_child_node, ast.expr)
        ]
        if not isinstance(statement, _SIMPLE):
            # of a loop or a branch, what decides whether it is entered
            heads = [getattr(statement, name, None) for name in ("iter", "test")]
            result = [head for head in heads if isinstance(head, ast.expr)]
        if any(_may_change(item, parameter) for item in result):
            return
        yield from result
        if not isinstance(statement, _SIMPLE):
            return


def _may_change(expression: ast.expr, parameter: str) -> bool:
    """Whether it does more than read entries: a function that is given the parameter itself may read others."""
    read = {
        id(node.value)
        for node in ast.walk(expression)
        if (isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load))
        or (isinstance(node, ast.Attribute) and node.attr == "get")
    }
    return any(
        isinstance(node, ast.Name) and node.id == parameter and id(node) not in read for node in ast.walk(expression)
    )


def _keys(expression: ast.AST, parameter: str) -> Iterator[tuple[str, int]]:
    if isinstance(expression, _MAYBE):
        return
    if isinstance(expression, _COMPREHENSIONS):
        yield from _keys(expression.generators[0].iter, parameter)
        return
    match expression:
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str(key))) if name == parameter:
            yield key, expression.lineno
    for child in ast.iter_child_nodes(expression):
        yield from _keys(child, parameter)
