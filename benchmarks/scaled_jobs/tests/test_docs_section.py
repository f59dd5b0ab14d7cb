"""Where figures go in a page."""

from __future__ import annotations

import pytest
from docs_section import replaced


def test_what_lies_between_the_marks_is_replaced() -> None:
    page = "before\n<!-- a -->\nold\n<!-- end of a -->\nafter\n"
    assert replaced(page, "a", ["new", "lines"]) == "before\n<!-- a -->\n\nnew\nlines\n\n<!-- end of a -->\nafter\n"


def test_a_page_without_the_place_is_an_error() -> None:
    with pytest.raises(ValueError, match="no place for b"):
        replaced("<!-- b -->\n", "b", [])
