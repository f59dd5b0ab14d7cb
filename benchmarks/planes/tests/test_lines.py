"""Lines of the tables in the docs."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from data_plane import heads, line
from docs_section import DOCS, between, merged

from planes.rows import RowCase
from planes.systems import ONE_POD, TWO_PODS


def course(name: str, milliseconds: Sequence[float]) -> Any:
    turns = [
        SimpleNamespace(put=millisecond / 4e3, get=millisecond / 2e3, round_trip=millisecond / 1e3)
        for millisecond in milliseconds
    ]
    return SimpleNamespace(system=SimpleNamespace(name=name), turns=turns)


def test_a_line_has_ours_and_the_round_trips_of_all() -> None:
    """For 8, 8 and 108 ms the median is 8 and the 95th percentile 8 + 0.9 * 100."""
    courses = [course("rljob", [8.0, 8.0, 108.0]), course("siiRL", [1000.0])]
    assert line(RowCase(18, True, 1, 1), TWO_PODS, courses, 1.26) == (
        "| 18 | padded, 18.9 MB | 2.0 | 4.0 | 8.0 (98.0) | – | – | – | – | 1,000.0 (1,000.0) | – | 1.3 |"
    )


def test_a_line_without_ours_is_as_wide_as_the_table() -> None:
    for place in (ONE_POD, TWO_PODS):
        assert {item.count("|") for item in [*heads(place), line(RowCase(1, False, 1, 1), place, [], 0.0)]} == {13}


def test_tables_in_the_docs_take_new_lines() -> None:
    """A case takes the place of its own line, between those of smaller and of larger ones."""
    page = (DOCS / "benchmarks.md").read_text()
    for short, place in (("one", ONE_POD), ("two", TWO_PODS)):
        there = between(page, f"data plane, {short}")[1].strip().splitlines()
        assert there[:2] == heads(place)
        new = line(RowCase(288, True, 1, 1), place, [], 0.0)
        changed = merged(there[2:], [new], 2)
        assert len(changed) == len(there[2:]) and changed.index(new) == 4
