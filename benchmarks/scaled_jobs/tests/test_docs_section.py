"""Where figures go in a page."""

from __future__ import annotations

import pytest
from docs_section import between, merged, replaced


def test_what_lies_between_the_marks_is_replaced() -> None:
    page = "before\n<!-- a -->\nold\n<!-- end of a -->\nafter\n"
    assert replaced(page, "a", ["new", "lines"]) == "before\n<!-- a -->\n\nnew\nlines\n\n<!-- end of a -->\nafter\n"


def test_a_page_without_the_place_is_an_error() -> None:
    with pytest.raises(ValueError, match="no place for b"):
        replaced("<!-- b -->\n", "b", [])
    with pytest.raises(ValueError, match="no place for b"):
        between("<!-- b -->\n", "b")


def test_a_page_is_what_comes_before_a_place_what_is_there_and_the_rest() -> None:
    page = "before\n<!-- a -->\nold\n<!-- end of a -->\nafter\n"
    assert between(page, "a") == ("before\n<!-- a -->\n", "old\n", "<!-- end of a -->\nafter\n")


def test_lines_that_were_measured_again_take_the_place_of_theirs() -> None:
    before = ["| 1,000 | Parquet | S3 | 7 |", "| 10,000 | JSON lines | disk | 5 |", "| 10,000 | Parquet | S3 | 6 |"]
    lines = ["| 10,000 | Parquet | S3 | 60 |", "| 2,000 | Parquet | S3 | 1 |", "| 10,000 | JSON lines | S3 | 2 |"]
    assert merged(before, lines, 3) == [
        before[0],
        lines[1],
        lines[2],
        before[1],
        lines[0],
    ]
