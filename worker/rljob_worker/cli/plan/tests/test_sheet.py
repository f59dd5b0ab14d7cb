"""Tables that fit a width: nothing is cut, and no word is broken."""

from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.cli.plan.sheet import Sheet, paragraph, widths_of

words = st.text("abcdef_->", min_size=1, max_size=24)
cells = st.lists(words, max_size=6).map(", ".join)


@st.composite
def sheets(draw):
    columns = draw(st.integers(1, 6))
    row = st.tuples(*[cells] * columns)
    headers = draw(st.one_of(st.just(()), st.tuples(*[words] * columns)))
    return Sheet("t", headers, tuple(draw(st.lists(row, min_size=1, max_size=5))))


@given(sheets(), st.integers(40, 200))
def test_every_word_is_there_whole_and_no_line_is_longer_than_the_width(sheet, width):
    lines = sheet.lines(width)
    shown = " ".join(lines).split()
    for cell in (cell for row in sheet.rows for cell in row):
        for word in cell.split():
            assert word in shown
    # a word of 24 characters and its comma, after a name of as many with two blanks on either side, may be more
    assert all(len(line) <= max(width, 2 + 24 + 2 + 25) for line in lines)
    if widths_of([row for row in (sheet.headers, *sheet.rows) if row], width) is not None:
        assert all(len(line) <= width for line in lines)


def test_columns_have_what_they_ask_for_where_there_is_room():
    assert widths_of([("a", "longer"), ("bbb", "c d")], 80) == [3, 6]


def test_the_widest_column_gives_way_first_and_none_gets_below_its_longest_word():
    # "aa bb cc dd" has 11 characters and "e f g" 5: of 10 for both and a gap of 2, 5 and 5 stay, then 4 and 4 of 8
    table = [("aa bb cc dd", "e f g")]
    assert [widths_of(table, width) for width in (18, 12, 10, 5)] == [[11, 5], [5, 5], [4, 4], [2, 1]]
    assert widths_of(table, 4) is None


def test_cells_break_between_words_and_lines_have_no_blanks_at_their_end():
    sheet = Sheet(
        "t", ("edge", "columns", "bytes"), (("a->b", "prompt_ids, response_ids, rewards", "1"), ("all", "", "2"))
    )
    assert sheet.lines(32) == [
        "edge  columns              bytes",
        "a->b  prompt_ids,          1",
        "      response_ids,",
        "      rewards",
        "all                        2",
    ]


def test_what_does_not_fit_side_by_side_is_written_row_by_row():
    sheet = Sheet(
        "t", ("stage", "reads", "after"), (("update", "prompt_ids, response_ids", "–"), ("reward", "", "update"))
    )
    assert sheet.lines(22) == ["update", "  reads  prompt_ids,", "         response_ids", "reward", "  after  update"]


def test_a_sentence_in_lines():
    assert paragraph("one two-three four", 8) == ["one", "two-three", "four"]
