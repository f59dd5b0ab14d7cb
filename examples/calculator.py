"""The tool of arithmetic-calculator.yaml."""

from __future__ import annotations

import ast
import operator

OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
MOST_CHARACTERS = 200


def calculator(expression: str) -> int:
    """The value of an expression of whole numbers, +, - and *.

    Args:
        expression: such as 12*34+56
    """
    if len(expression) > MOST_CHARACTERS:
        raise ValueError(f"the expression has {len(expression)} characters; at most {MOST_CHARACTERS} are read")
    return value_of(ast.parse(expression.strip(), mode="eval").body)


def value_of(node: ast.expr) -> int:
    """The value of a part. Raises ValueError for what is neither a number nor one of the operations."""
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in OPERATIONS:
            return OPERATIONS[type(operation)](value_of(left), value_of(right))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -value_of(operand)
    raise ValueError(f"{ast.unparse(node)!r} is no expression of whole numbers, +, - and *")
