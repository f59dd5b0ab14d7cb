"""Tables of lines and cells, as wide as the reader's terminal."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

Line = Sequence[str]

_GAP = 2
_LEAST_TEXT = 24
"""Characters that the last column keeps where it has more: fewer say nothing."""


def terminal_width() -> int | None:
    """Characters of a line; None where nobody says, as in a pipe."""
    return shutil.get_terminal_size((0, 0)).columns or None


def in_columns(lines: Sequence[Line], width: int | None = None, least_needed: Sequence[str] = ()) -> str:
    """Lines of as many cells each, heads first; columns are as wide as their longest cell.

    width: a table that is wider does without the columns under these heads, one after the other, and its last column,
    which is of texts, is cut to what is left. None: nothing is left out.
    """
    for count in range(len(least_needed) + 1):
        shown = [at for at, head in enumerate(lines[0]) if head not in least_needed[:count]]
        widths = [max(len(line[at]) for line in lines) for at in shown]
        room = widths[-1] if width is None else width - sum(widths[:-1]) - _GAP * (len(widths) - 1)
        if room >= min(widths[-1], _LEAST_TEXT):
            break
    cells = [[*(line[at] for at in shown[:-1]), _cut(line[shown[-1]], max(room, _LEAST_TEXT))] for line in lines]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    padded = ((cell.ljust(size) for cell, size in zip(line, widths, strict=True)) for line in cells)
    return "\n".join((" " * _GAP).join(line).rstrip() for line in padded)


def _cut(text: str, room: int) -> str:
    """Its first line as far as there is room, with a mark where there is more."""
    line, _, more = text.partition("\n")
    return line if len(line) <= room and not more else f"{line[: room - 1]}…"
