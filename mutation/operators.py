"""The mistakes: each function looks at one node and yields the edits that make its mistake there.

The set is fixed, so that percentages mean the same from one day to the next.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from mutation.source import Edit, MutatedSource

COMPARISONS = {
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "==": "!=",
    "!=": "==",
    "in": "not in",
    "not in": "in",
    "is": "is not",
    "is not": "is",
}
ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.Pow: ("**", "*"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
}
_OPPOSITES = (
    ("min", "max"),
    ("minimum", "maximum"),
    ("any", "all"),
    ("sum", "mean"),
    ("floor", "ceil"),
    ("startswith", "endswith"),
    ("removeprefix", "removesuffix"),
)
CALLS = {a: b for pair in _OPPOSITES for a, b in (pair, pair[::-1])}

_ROUNDED = {"ceil": "int(({}) // 1)", "floor": "-int(-({}) // 1)"}

_COMPARISON = re.compile(r"not\s+in\b|is\s+not\b|in\b|is\b|[<>=!]=|[<>]")
_SYMMETRIC = (ast.Eq, ast.NotEq, ast.In, ast.NotIn, ast.Is, ast.IsNot)
_ORDERED = ("isinstance", "issubclass", "min", "max")
"""Calls with arguments that commute, or that fail at once when swapped."""


def comparison(source: MutatedSource, node: ast.AST) -> Iterator[Edit]:
    """`<` to `<=`, `==` to `!=`, `in` to `not in`, `is` to `is not`, and back."""
    if not isinstance(node, ast.Compare):
        return
    operands = [node.left, *node.comparators]
    for left, right in zip(operands, operands[1:], strict=False):
        start = source.span(left)[1]
        result = _COMPARISON.search(source.between(start, source.span(right)[0]))
        assert result is not None, f"no comparison in {source.of(node)}"
        new = COMPARISONS[" ".join(result.group().split())]
        yield _in_gap("comparison", start, result, new)


def connective(source: MutatedSource, node: ast.AST) -> Iterator[Edit]:
    """`and` to `or` and back."""
    if not isinstance(node, ast.BoolOp):
        return
    new = "or" if isinstance(node.op, ast.And) else "and"
    for left, right in zip(node.values, node.values[1:], strict=False):
        start = source.span(left)[1]
        result = re.search(r"\b(and|or)\b", source.between(start, source.span(right)[0]))
        assert result is not None
        yield _in_gap("connective", start, result, new)


def arithmetic(source: MutatedSource, node: ast.AST) -> Iterator[Edit]:
    """`+` to `-`, `*` to `/` and the like, also before `=`; a minus sign is lost."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield source.replace("arithmetic", node, f"({source.of(node.operand)})")
    if not isinstance(node, ast.BinOp | ast.AugAssign) or type(node.op) not in ARITHMETIC:
        return
    left, right = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.target, node.value)
    old, new = ARITHMETIC[type(node.op)]
    start = source.span(left)[1]
    result = re.search(re.escape(old), source.between(start, source.span(right)[0]))
    assert result is not None
    yield _in_gap("arithmetic", start, result, new)


def division(source: MutatedSource, node: ast.AST) -> Iterator[Edit]:
    """`a / b` and `a // b` lose their divisor; what `-(-a // b)` rounds up is rounded down."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div | ast.FloorDiv):
        yield source.replace("division", node, f"({source.of(node.left)})")
    match node:
        case ast.UnaryOp(ast.USub(), ast.BinOp(ast.UnaryOp(ast.USub(), dividend), ast.FloorDiv(), divisor)):
            yield source.replace("division", node, f"(({source.of(dividend)}) // ({source.of(divisor)}))")


def negation(source: MutatedSource, node: ast.AST) -> Iterator[Edit]:
    """A condition is turned round, or loses its `not`; not where a comparison's mutant is the same."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield source.replace("negation", node, f"({source.of(node.operand)})")
    conditions: list[ast.expr] = []
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        conditions = [node.test]
    elif isinstance(node, ast.comprehension):
        conditions = node.ifs
    for test in conditions:
        is_not = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
        is_symmetric = isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], _SYMMETRIC)
        if not is_not and not is_symmetric:
            yield source.replace("negation", test, f"(not ({source.of(test)}))")


def constant(source: MutatedSource, node: ast.AST) -> Iterator[Edit]:
    """A number is one more or one less, True is False, a text is empty."""
    if isinstance(node, ast.JoinedStr):
        yield source.replace("constant", node, '""')
    if not isinstance(node, ast.Constant):
        return
    value = node.value
    if isinstance(value, bool):
        yield source.replace("constant", node, str(not value))
    elif isinstance(value, int):
        yield source.replace("constant", node, str(value + 1))
        yield source.replace("constant", node, str(value - 1) if value else "(-1)")
    elif isinstance(value, float):
        yield source.replace("constant", node, repr(value + 1.0))
    elif isinstance(value, str | bytes):
        new: str | bytes = type(value)() if value else ("mutated" if isinstance(value, str) else b"mutated")
        yield source.replace("constant", node, repr(new))


def default(source: MutatedSource, node: ast.AST) -> Iterator[Edit]:
    """A default that is not a plain constant becomes None."""
    if isinstance(node, ast.arguments):
        for item in (*node.defaults, *node.kw_defaults):
            if item is not None and not isinstance(item, ast.Constant | ast.JoinedStr):
                yield source.replace("default", item, "None")


def returned(source: MutatedSource, node: ast.AST) -> Iterator[Edit]:
    """A function returns None."""
    if isinstance(node, ast.Return) and node.value is not None:
        yield source.replace("return", node.value, "None")


def statement(source: MutatedSource, node: ast.AST) -> Iterator[Edit]:
    """A call, an assignment, a raise, a break or a continue is forgotten."""
    is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await | ast.YieldFrom)
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        yield Edit("statement", source.span(node.annotation)[1], source.span(node)[1], "")
    elif is_call or isinstance(node, ast.Assign | ast.AugAssign | ast.Raise | ast.Break | ast.Continue | ast.Delete):
        assert isinstance(node, ast.stmt)
        yield source.replace("statement", node, "pass")


def arguments(source: MutatedSource, node: ast.AST) -> Iterator[Edit]:
    """A keyword argument is left out; the first two plain arguments change places."""
    if not isinstance(node, ast.Call):
        return
    for keyword in node.keywords:
        if keyword.arg is not None:
            yield _without(source, keyword)
    plain = [arg for arg in node.args[:2] if isinstance(arg, ast.Name | ast.Attribute)]
    if len(plain) == 2 and not (isinstance(node.func, ast.Name) and node.func.id in _ORDERED):
        first, second = plain
        gap = source.between(source.span(first)[1], source.span(second)[0])
        text = source.of(second) + gap + source.of(first)
        yield Edit("arguments", source.span(first)[0], source.span(second)[1], text)


def call(source: MutatedSource, node: ast.AST) -> Iterator[Edit]:
    """`min` is `max`, `any` is `all`, `startswith` is `endswith`, what is rounded up is rounded down, and back."""
    if not isinstance(node, ast.Call):
        return
    function = node.func
    name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
    if isinstance(function, ast.Name) and name in _ROUNDED:
        # the module need not know the opposite by its name
        yield source.replace("call", node, _ROUNDED[name].format(source.of(node.args[0])))
    elif name in CALLS and not (isinstance(function, ast.Name) and name == "sum"):
        start, end = source.span(function)
        yield Edit("call", end - len(name), end, CALLS[name])


OPERATORS: tuple[Callable[[MutatedSource, ast.AST], Iterator[Edit]], ...] = (
    comparison,
    connective,
    arithmetic,
    division,
    negation,
    constant,
    default,
    returned,
    statement,
    arguments,
    call,
)


def _in_gap(operator: str, start: int, result: re.Match[str], new: str) -> Edit:
    """An edit of what was found in the text from byte `start` on."""
    before = start + len(result.string[: result.start()].encode())
    return Edit(operator, before, before + len(result.group().encode()), new)


def _without(source: MutatedSource, keyword: ast.keyword) -> Edit:
    start, end = source.span(keyword)
    comma = re.match(rb"\s*,", source.data[end:])
    return Edit("arguments", start, end + (comma.end() if comma else 0), "")
