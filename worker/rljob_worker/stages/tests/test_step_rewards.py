"""Steps of an answer as characters, and the tokens that they end in."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.batch import Column
from rljob_worker.services.steps import steps_of
from rljob_worker.stages.step_rewards import step_rewards, tokens_at

PIECES = ["3*4", "=12", "\n", "12-", "5=7\n", "####", " 7", ""]
"""Of a vocabulary; the last one is a special token, of which nothing is read."""


def plain(ids):
    return "".join(PIECES[int(each)] for each in ids)


def listed(column):
    """Values of each row."""
    return [row.tolist() for row in column.to_list()]


def stripped(ids):
    """As a tokenizer that leaves out the space at the beginning of a text."""
    return plain(ids).lstrip(" ")


def in_bytes(ids):
    """Tokens are bytes of UTF-8, of which some characters take several."""
    return bytes(int(each) for each in ids).decode(errors="replace")


def test_rewards_are_at_the_tokens_in_which_steps_end():
    # 3*4 =12 \n | 12- 5=7\n | #### 7 <end>: steps end after 7, 14 and 20 characters
    ids = [0, 1, 2, 3, 4, 5, 6, 7]
    ends = [step.end for step in steps_of(plain(ids), "\n")]
    assert ends == [7, 14, 20]
    rows = Column.ragged([ids, [6, 7]])
    # the second row has one step of two characters, and one of none, which ends nowhere
    found = step_rewards(rows, [list(zip(ends, [0.5, 0.25, 1.0], strict=True)), [(0, 9.0), (2, 3.0)]], plain)
    assert listed(found) == [[0, 0, 0.5, 0, 0.25, 0, 1.0, 0], [3.0, 0]]
    assert found.dtype == "float64"


def test_rewards_that_end_in_one_token_add_up():
    # "5=7\n" holds two ends
    found = step_rewards(Column.ragged([[3, 4]]), [[(4, 1.0), (7, 2.0)]], plain)
    assert listed(found) == [[0, 3.0]]


def test_rows_without_steps_or_tokens_have_none():
    assert listed(step_rewards(Column.ragged([[0, 1], []]), [[], [(0, 1.0)]], plain)) == [[0, 0], []]
    assert listed(step_rewards(Column.ragged([]), [], plain)) == []


def test_a_space_that_is_left_out_at_the_beginning_moves_nothing():
    # "7" "####" " 7": one, five and seven characters
    assert stripped(np.array([6, 5, 6])) == "7#### 7"
    assert tokens_at(np.array([6, 5, 6]), [1, 2, 5, 7], stripped) == [0, 1, 1, 2]


def test_a_character_of_several_tokens_ends_in_the_last_of_them():
    ids = np.frombuffer("aé→b".encode(), np.uint8).astype(np.int64)  # 1, 2, 3 and 1 bytes
    # beginnings of "é" and "→" are a replacement character each, as long as the whole
    assert in_bytes(ids) == "aé→b"
    assert tokens_at(ids, [1, 4], in_bytes) == [0, 6]


@given(st.lists(st.integers(0, len(PIECES) - 1), min_size=1, max_size=30), st.data())
@pytest.mark.parametrize("decode", [plain, stripped])
def test_a_step_ends_in_the_first_token_that_brings_as_many_characters(decode, ids, data):
    text = decode(ids)
    ends = data.draw(st.lists(st.integers(0, len(text)), max_size=5))
    for end, token in zip(ends, tokens_at(np.array(ids), ends, decode), strict=True):
        assert len(decode(ids[: token + 1])) >= end
        assert token == 0 or len(decode(ids[:token])) < end
