"""Tables at every width."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob.columns import in_columns, terminal_width

LINES = [
    ("NAME", "PID", "AGE", "CAUSE"),
    ("small", "12345", "3h", "the data or a reward is wrong"),
    ("b", "–", "5d", ""),
]


def test_columns_are_as_wide_as_what_is_in_them():
    assert in_columns(LINES).splitlines() == [
        "NAME   PID    AGE  CAUSE",
        "small  12345  3h   the data or a reward is wrong",
        "b      –      5d",
    ]


def test_a_narrow_table_does_without_what_is_least_needed_and_cuts_its_texts():
    # 5 + 2 + 5 + 2 + 3 + 2 = 19 before the cause
    assert in_columns(LINES, 48, ["PID"]).splitlines()[1] == "small  12345  3h   the data or a reward is wrong"
    assert in_columns(LINES, 47, ["PID"]).splitlines()[1] == "small  12345  3h   the data or a reward is wro…"
    # with 42 it would keep 23 characters: without PID there are 7 more
    assert in_columns(LINES, 42, ["PID"]).splitlines()[1] == "small  3h   the data or a reward is wrong"
    assert in_columns(LINES, 40, ["PID", "AGE"]).splitlines()[1] == "small  3h   the data or a reward is wro…"
    assert in_columns(LINES, 35, ["PID", "AGE"]).splitlines()[1] == "small  the data or a reward is wro…"


def test_of_several_lines_the_first_is_shown():
    assert in_columns([("A", "B"), ("1", "one\ntwo")]).splitlines()[1] == "1  one…"


@given(st.integers(0, 120))
def test_no_line_is_wider_than_the_terminal_where_that_can_be(width):
    heads = [head for head in LINES[0] if head != "CAUSE"]
    table = in_columns(LINES, width, heads)
    assert all(len(line) <= max(width, 24) for line in table.splitlines())


@pytest.mark.parametrize(("columns", "width"), [("80", 80), ("200", 200)])
def test_a_terminal_says_how_wide_it_is(monkeypatch, columns, width):
    monkeypatch.setenv("COLUMNS", columns)
    assert terminal_width() == width
