"""Figures in docs/benchmarks.md that a command writes itself: between `<!-- NAME -->` and `<!-- end of NAME -->`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def write(name: str, lines: Sequence[str]) -> None:
    """Put the lines in place of what is there."""
    page = DOCS / "benchmarks.md"
    page.write_text(replaced(page.read_text(), name, lines))


def read(name: str) -> list[str]:
    """The lines that are there."""
    return between((DOCS / "benchmarks.md").read_text(), name)[1].strip().splitlines()


def merged(before: Sequence[str], lines: Sequence[str], num_keys: int) -> list[str]:
    """Lines of a table with those in place of which there are new ones, which agree in their first cells; in the order
    of these cells, the first of which is a number."""

    def key(line: str) -> tuple[int, tuple[str, ...]]:
        first, *others = [cell.strip() for cell in line.strip("|").split("|")][:num_keys]
        return int(first.replace(",", "")), tuple(others)

    return [line for _, line in sorted({key(line): line for line in [*before, *lines]}.items())]


def replaced(text: str, name: str, lines: Sequence[str]) -> str:
    """Raises ValueError when the page has no such place."""
    before, _, after = between(text, name)
    return "".join([before, "\n", "\n".join(lines), "\n\n", after])


def between(text: str, name: str) -> tuple[str, str, str]:
    """What comes before a place, mark included, what is there, and the rest. Raises ValueError without such a place."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    before, result, rest = text.partition(begin)
    inside, found_end, after = rest.partition(end)
    if not (result and found_end):
        raise ValueError(f"docs/benchmarks.md has no place for {name}")
    return before + begin, inside, end + after
