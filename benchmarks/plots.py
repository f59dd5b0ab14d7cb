"""Line plots as SVG text: axes that are logarithmic to base 2, or linear; the same input gives the same bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rljob_api.picture.svg import text

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 72, 190, 56, 56
COLOURS = ("#2563eb", "#dc2626", "#16a34a", "#d97706", "#9333ea", "#0891b2", "#475569", "#db2777", "#65a30d")
GREY = "#475569"


@dataclass(frozen=True)
class Line:
    """Points of one series; `is_dashed`: not measured."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int
    is_dashed: bool = False


@dataclass(frozen=True)
class Axis:
    """Its title, and how its ticks are written."""

    title: str
    is_log: bool = True
    shown: Callable[[float], str] = "{:,.4g}".format


def plot(title: str, subtitle: str, x: Axis, y: Axis, lines: Sequence[Line]) -> str:
    """The plot, a legend at its right."""
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    place_x = _scale([p[0] for line in lines for p in line.points], x.is_log, LEFT, right)
    place_y = _scale([p[1] for line in lines for p in line.points], y.is_log, bottom, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="system-ui, Helvetica, Arial, sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        text(LEFT, 24, title, size=16, weight=600, anchor="start"),
        text(LEFT, 42, subtitle, size=11, colour=GREY, anchor="start"),
    ]
    for value in place_x.ticks:
        at = place_x(value)
        parts += [_rule(at, TOP, at, bottom), text(at, bottom + 16, x.shown(value), size=10, colour=GREY)]
    for value in place_y.ticks:
        at = place_y(value)
        parts += [
            _rule(LEFT, at, right, at),
            text(LEFT - 6, at + 4, y.shown(value), size=10, colour=GREY, anchor="end"),
        ]
    parts += [
        text((LEFT + right) / 2, bottom + 38, x.title, size=12),
        text(12, TOP - 6, y.title, size=12, anchor="start"),
    ]
    for number, line in enumerate(lines):
        parts += _drawn(line, place_x, place_y, right + 14, TOP + 10 + 18 * number)
    return "\n".join([*parts, "</svg>\n"])


@dataclass(frozen=True)
class _Scale:
    """From values to points."""

    ticks: Sequence[float]
    is_log: bool
    begin: float
    end: float

    def __call__(self, value: float) -> float:
        low, high, at = (math.log2(v) if self.is_log else v for v in (self.ticks[0], self.ticks[-1], value))
        return self.begin + (self.end - self.begin) * (at - low) / (high - low)


def _scale(values: Sequence[float], is_log: bool, begin: float, end: float) -> _Scale:
    if is_log:
        low, high = math.floor(math.log2(min(values)) + 1e-9), math.ceil(math.log2(max(values)) - 1e-9)
        return _Scale([2.0**power for power in range(low, max(high, low + 1) + 1)], True, begin, end)
    step = 10 ** math.floor(math.log10(max(values)))
    step = next(part * step for part in (0.1, 0.2, 0.5, 1.0) if max(values) / (part * step) <= 6 or part == 1.0)
    return _Scale([step * i for i in range(math.ceil(max(values) / step - 1e-9) + 1)], False, begin, end)


def _rule(x0: float, y0: float, x1: float, y1: float) -> str:
    return f'<path d="M {x0:.1f} {y0:.1f} L {x1:.1f} {y1:.1f}" stroke="#e2e8f0"/>'


def _drawn(line: Line, x: _Scale, y: _Scale, legend: float, top: float) -> list[str]:
    points = [(x(a), y(b)) for a, b in line.points]
    colour, dashes = COLOURS[line.colour % len(COLOURS)], ' stroke-dasharray="5 4"' if line.is_dashed else ""
    path = "M " + " L ".join(f"{a:.1f} {b:.1f}" for a, b in points)
    dots = [] if line.is_dashed else [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in points]
    return [
        f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>',
        *dots,
        f'<path d="M {legend:.1f} {top:.1f} h 20" stroke="{colour}" stroke-width="2"{dashes}/>',
        text(legend + 26, top + 4, line.name, size=11, anchor="start"),
    ]
