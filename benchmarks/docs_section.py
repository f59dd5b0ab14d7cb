"""Figures in docs/benchmarks.md that a command writes itself: between `<!-- NAME -->` and `<!-- end of NAME -->`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def write(name: str, lines: Sequence[str]) -> None:
    """Put the lines in place of what is there."""
    page = DOCS / "benchmarks.md"
    page.write_text(replaced(page.read_text(), name, lines))


def replaced(text: str, name: str, lines: Sequence[str]) -> str:
    """Raises ValueError when the page has no such place."""
    before, begin, rest = text.partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"<!-- end of {name} -->\n")
    if not (begin and end):
        raise ValueError(f"docs/benchmarks.md has no place for {name}")
    return "".join([before, begin, "\n", "\n".join(lines), "\n\n", end, after])
