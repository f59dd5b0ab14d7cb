"""Pieces of SVG: curves, labels, text, arrow heads."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

Point = tuple[float, float]

INK = "#0f172a"
LINE_HEIGHT, MAX_LABEL_LINES, MAX_LABEL_WIDTH = 13, 4, 22


def wrap(columns: Sequence[str]) -> list[str]:
    """Column names in short lines, the last of which says how many more there are."""
    lines: list[str] = []
    for index, column in enumerate(columns):
        if lines and len(lines[-1]) + len(column) + 2 <= MAX_LABEL_WIDTH:
            lines[-1] += f", {column}"
        elif len(lines) == MAX_LABEL_LINES - 1 and index < len(columns) - 1:
            return [*lines, f"and {len(columns) - index} more"]
        else:
            lines.append(column)
    return lines


def curve(points: Sequence[Point], straight: float) -> str:
    """A smooth line through all points, and straight for a width of `straight` around those in between."""
    path = f"M {points[0][0]:.1f} {points[0][1]:.1f}"
    for index, (x, y) in enumerate(points[1:], start=1):
        is_bend = index < len(points) - 1
        entry = x - straight / 2 if is_bend else x
        start_x, start_y = points[index - 1]
        start_x += straight / 2 if index > 1 else 0
        middle = (start_x + entry) / 2
        path += f" C {middle:.1f} {start_y:.1f} {middle:.1f} {y:.1f} {entry:.1f} {y:.1f}"
        path += f" H {x + straight / 2:.1f}" if is_bend else ""
    return path


def label(x: float, y: float, lines: Sequence[str], colour: str) -> str:
    """Lines of text on a white ground, centred at a point."""
    if not lines:
        return ""
    width, height = 5.6 * max(map(len, lines)) + 10, LINE_HEIGHT * len(lines) + 4
    ground = (
        f'<rect x="{x - width / 2:.1f}" y="{y - height / 2:.1f}" width="{width:.1f}" height="{height:.1f}" '
        'rx="4" fill="#ffffff" fill-opacity="0.92"/>'
    )
    texts = [
        text(
            x,
            y - height / 2 + LINE_HEIGHT * (i + 1) - 1,
            line,
            size=10,
            colour=colour,
        )
        for i, line in enumerate(lines)
    ]
    return "\n".join([ground, *texts])


def text(
    x: float, y: float, text: str, *, size: int, colour: str = INK, weight: int = 400, anchor: str = "middle"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" fill="{colour}" '
        f'text-anchor="{anchor}">{escape(text)}</text>'
    )


def clip(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def marker(name: str, colour: str) -> str:
    return (
        f'<defs><marker id="{name}" viewBox="0 0 8 8" refX="1" refY="4" markerWidth="8" markerHeight="8" '
        f'markerUnits="userSpaceOnUse" orient="auto"><path d="M 0 0 L 8 4 L 0 8 z" fill="{colour}"/></marker></defs>'
    )
