"""Several responses to a prompt, worked out by hand."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.metrics.pass_at_k import maj_at_k, pass_at_k, sizes

RIGHT = np.array([[0, 0, 0, 0], [0, 1, 0, 0], [1, 1, 0, 1]], bool)


@pytest.mark.parametrize(("n", "result"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_powers_of_two_and_all(n, result):
    assert sizes(n) == result


@pytest.mark.parametrize(
    ("k", "result"),
    [
        (1, [0, 1 / 4, 3 / 4]),
        # 1 right of 4: of 6 pairs the 3 without it fail; 3 right of 4: no pair has none
        (2, [0, 1 - 3 / 6, 1]),
        # 1 right of 4: of 4 triples the one without it fails
        (3, [0, 1 - 1 / 4, 1]),
        (4, [0, 1, 1]),
    ],
)
def test_the_chance_that_one_of_k_is_right(k, result):
    assert pass_at_k(RIGHT, k).tolist() == pytest.approx(result)


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
def test_it_is_the_share_of_all_choices_that_have_a_right_one(right, data):
    k = data.draw(st.integers(1, len(right)))
    choices = [any(chosen) for chosen in combinations(right, k)]
    assert pass_at_k(np.array([right]), k)[0] == pytest.approx(sum(choices) / len(choices))


def test_of_very_many_responses_it_is_still_a_number():
    right = np.zeros((1, 1024), bool)
    right[0, 0] = True
    assert pass_at_k(right, 512)[0] == pytest.approx(0.5)


def test_what_most_of_the_first_k_answer_is_right_or_wrong():
    right = np.array([[0, 1, 1, 0], [1, 0, 0, 0]], bool)
    answers = ["6", "7", "7", "5", "7", "6", "6", "6"]
    # first prompt: 6 | 6 and 7, of which 6 comes first | 7 twice.   second: 7 | 7 comes first | 6 thrice
    assert [maj_at_k(right, answers, k).tolist() for k in (1, 2, 4)] == [[0, 1], [0, 1], [1, 0]]


def test_a_response_without_an_answer_has_no_vote():
    right = np.array([[0, 0, 1, 0], [0, 0, 0, 0]], bool)
    answers = [None, None, "7", None, None, None, None, None]
    # two of the first four say nothing, and 7 has the only vote; nobody answers the second prompt
    assert [maj_at_k(right, answers, k).tolist() for k in (2, 4)] == [[0, 0], [1, 0]]


def test_without_prompts_there_is_nothing_to_tell():
    none = np.zeros((0, 4), bool)
    assert pass_at_k(none, 2).shape == maj_at_k(none, [], 2).shape == (0,)
