"""Messages that docs/troubleshooting.md quotes are those of the code."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
PACKAGES = ("worker/rljob_worker", "crds/rljob_api", "client/rljob")


def written(node: ast.AST) -> str:
    """The text of a string; … for what an f-string puts in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(written(part) if isinstance(part, ast.Constant) else "…" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


@cache
def texts() -> str:
    """Every string of the code on a line of its own."""
    lines = []
    for package in PACKAGES:
        for path in sorted((CHECKOUT / package).rglob("*.py")):
            if "tests" not in path.parts:
                lines += [written(node) for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    return "\n".join(" ".join(line.split()) for line in lines if line)


def is_in_code(message: str) -> bool:
    """Its words between … each stand in a string; messages are put together from several."""
    parts = [part.strip(" :,;()") for part in message.split("…")]
    return all(part in texts() for part in parts) and max(map(len, parts)) >= 6


def test_quoted_messages_are_in_the_code():
    page = (CHECKOUT / "docs" / "troubleshooting.md").read_text()
    quoted = [next(filter(None, found)) for found in re.findall(r"(?m)^\| (?:`` (.+?) ``|`([^`]+)`) \|", page)]
    assert len(quoted) > 20
    assert [message for message in quoted if not is_in_code(message)] == []
    assert not is_in_code("there is no such gadget")
