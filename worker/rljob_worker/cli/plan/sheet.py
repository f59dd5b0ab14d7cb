"""Tables of words that fit a width. Pure.

Cells break between words and never inside one. A table whose words do not fit side by side is written row by row:

    edge                transport  columns             update
    rollout->reference  Buffer     prompt_ids,           runs   UpdatePolicy on actor
                                   response_ids          reads  prompt_ids, response_ids
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from textwrap import wrap

NOTHING = "–"
"""A cell that says so."""

_GAP = "  "


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table of text."""

    title: str
    headers: tuple[str, ...]
    """Headers of the columns; empty where they speak for themselves."""
    rows: tuple[tuple[str, ...], ...]

    def lines(self, width: int) -> list[str]:
        """Without the title; of at most `width` characters, except for words that are longer."""
        table = [row for row in (self.headers, *self.rows) if row]
        widths = widths_of(table, width)
        if widths is None:
            return list(self._row_by_row(width))
        return [line for row in table for line in _side_by_side(row, widths)]

    def _row_by_row(self, width: int) -> Iterator[str]:
        names = self.headers or ("",) * len(self.rows[0])
        indent = max(map(len, names[1:]))
        for row in self.rows:
            yield from paragraph(row[0], width)
            for name, cell in zip(names[1:], row[1:], strict=True):
                if cell not in ("", NOTHING):
                    yield from _hanging(f"{_GAP}{name:{indent}}{_GAP}", cell, width)


def paragraph(text: str, width: int) -> list[str]:
    """A sentence in lines."""
    return wrap(text, width, break_long_words=False, break_on_hyphens=False)


def widths_of(table: Sequence[Sequence[str]], width: int) -> list[int] | None:
    """The width of each column: what it asks for, less for the widest where it does not fit; None where words would
    break."""
    room = width - len(_GAP) * (len(table[0]) - 1)
    columns = list(zip(*table, strict=True))
    least = [max(len(word) for cell in column for word in (cell.split() or [""])) for column in columns]
    most = [max(map(len, column)) for column in columns]
    if sum(least) > room:
        return None
    limit = max(most)
    while sum(widths := [min(end, max(start, limit)) for start, end in zip(least, most, strict=True)]) > room:
        limit -= 1
    return widths


def _side_by_side(row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    cells = [paragraph(cell, width) if cell else [] for cell, width in zip(row, widths, strict=True)]
    for parts in zip_longest(*cells, fillvalue=""):
        yield _GAP.join(f"{part:{width}}" for part, width in zip(parts, widths, strict=True)).rstrip()


def _hanging(head: str, text: str, width: int) -> Iterator[str]:
    for index, line in enumerate(paragraph(text, width - len(head))):
        yield (head if index == 0 else " " * len(head)) + line
