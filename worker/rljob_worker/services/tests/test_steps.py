"""Splitting a response into steps, and aggregates of their scores."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.services.steps import AGGREGATES, kept_pieces, steps_of


def test_steps_are_what_separators_divide():
    # six characters and the end of the line; one more is the empty line; then six and another end
    assert steps_of("3*4=12\n\n12-5=7\n", "\n") == [("3*4=12", 7), ("12-5=7", 15)]
    assert steps_of("one", "\n") == [("one", 3)]
    assert steps_of(" \n ", "\n") == [("", 0)]
    assert steps_of("a;;b", ";;") == [("a", 3), ("b", 4)]


@given(st.text("ab \n", max_size=30))
def test_a_step_ends_with_its_text_and_what_separates_it(response):
    last = 0
    for text, end in steps_of(response, "\n"):
        assert response[:end].rstrip("\n").endswith(text.rstrip("\n")) and last <= end <= len(response)
        last = end


@pytest.mark.parametrize(
    ("name", "reward"),
    [("Minimum", 0.2), ("Mean", 0.6), ("Product", 0.16), ("Last", 0.8), ("Sum", 1.8)],
)
def test_aggregates(name, reward):
    # of [0.8, 0.2, 0.8]: sum 1.8, mean 1.8 / 3; of [1, 0.2, 0.8]: product 0.16
    scores = [1.0, 0.2, 0.8] if name == "Product" else [0.8, 0.2, 0.8]
    assert AGGREGATES[name](scores) == pytest.approx(reward)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.sampled_from(sorted(AGGREGATES.keys() - {"Sum"})))
def test_an_aggregate_of_scores_is_a_score(scores, name):
    assert 0 <= AGGREGATES[name](scores) <= 1 + 1e-9
    assert math.isclose(AGGREGATES[name](scores[:1]), scores[0])


def test_what_is_too_long_loses_its_beginning():
    # 1 2 3 | 4 5 | 6, of which the last four stay: 3 4 5 6, where pieces end at 5 and 6
    assert kept_pieces([1, 2, 3], [[4, 5], [6]], 4) == ([3, 4, 5, 6], [2, 3])
    assert kept_pieces([1, 2, 3], [[4, 5], [6]], 1) == ([6], [0])


@given(
    st.lists(st.integers(), max_size=5),
    st.lists(st.lists(st.integers(), min_size=1, max_size=5), min_size=1, max_size=5),
    st.integers(1, 30),
)
def test_every_step_that_is_left_ends_at_its_own_last_token(head, pieces, max_tokens):
    tokens, ends = kept_pieces(head, pieces, max_tokens)
    assert len(tokens) <= max_tokens and tokens == [*head, *sum(pieces, [])][-max_tokens:]
    assert [tokens[end] for end in ends] == [piece[-1] for piece in pieces][len(pieces) - len(ends) :]
    assert ends[-1] == len(tokens) - 1
