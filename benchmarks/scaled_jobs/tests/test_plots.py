"""Pictures: where points land, and that they are the same every time."""

from __future__ import annotations

import re

from plots import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Axis, Line, plot

LINES = [Line("measured", [(2, 100.0), (8, 400.0)], 0), Line("model", [(2, 100.0), (32, 800.0)], 1, is_dashed=True)]


def test_points_lie_where_their_values_are() -> None:
    """Pods from 2^1 to 2^5: 8 is in the middle. Linear from 0 to 800: 400 is in the middle."""
    picture = plot("a", "b", Axis("pods"), Axis("rate", is_log=False), LINES)
    dots = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', picture)
    middle = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
    assert (float(dots[0][0]), [float(part) for part in dots[1]]) == (LEFT, list(middle))


def test_only_what_was_measured_has_dots_and_what_was_not_is_dashed() -> None:
    picture = plot("a", "b", Axis("pods"), Axis("rate"), LINES)
    assert (picture.count("<circle"), picture.count('stroke-dasharray="5 4"')) == (2, 2)  # the line, and its legend


def test_a_picture_is_the_same_every_time_and_titles_are_escaped() -> None:
    pictures = {plot("a < b", "", Axis("pods"), Axis("rate"), LINES) for _ in range(2)}
    assert len(pictures) == 1 and "a &lt; b" in pictures.pop()
