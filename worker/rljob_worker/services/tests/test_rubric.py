"""Scores parsed from a judge's answer, and the reward of its votes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.services.rubric import number_after, reward_of_votes, verdict


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("#### 7", 7.0),
        ("two steps hold.\n####  0.5\n", 0.5),
        ("#### 1 no, #### 3", 3.0),
        ("####: -2.25 points", -2.25),
        ("#### .5", 0.5),
        ("#### +4.", 4.0),
        ("#### 7/10", 7.0),
        ("7", None),
        ("#### good, 7", None),
        ("####", None),
        ("", None),
    ],
)
def test_the_number_right_after_the_last_mark_counts(text, number):
    assert number_after(text, "####") == number


@pytest.mark.parametrize(
    ("text", "worth"),
    [("#### 0", 0.0), ("#### 10", 1.0), ("#### 2.5", 0.25), ("#### 11", None), ("#### -1", None), ("ten", None)],
)
def test_a_verdict_lies_between_0_and_1_or_is_none(text, worth):
    assert verdict(text, "####", 0.0, 10.0) == worth


@given(st.text(), st.floats(-100, 100), st.floats(0.001, 100))
def test_whatever_a_judge_says_is_bounded(text, lowest, width):
    for said in (text, f"#### {text}"):
        worth = verdict(said, "####", lowest, lowest + width)
        assert worth is None or 0 <= worth <= 1


@given(st.integers(0, 1000), st.text(alphabet="abc .\n", max_size=20))
def test_a_number_is_found_whatever_stands_before_it(number, before):
    assert number_after(f"{before}#### {number}", "####") == number


def test_the_mean_of_votes_is_the_reward():
    # (1 + 0) / 2; each is 0.5 away from it; one of three is missing
    reward = reward_of_votes([1.0, 0.0, None], unparsed=0.0)
    assert reward == {"reward": 0.5, "unparsed": pytest.approx(1 / 3), "disagreement": 0.5}
    assert reward_of_votes([None, None], unparsed=0.25) == {"reward": 0.25, "unparsed": 1.0}


@given(st.lists(st.none() | st.floats(0, 1), min_size=1, max_size=8), st.floats(0, 1))
def test_the_reward_of_votes_is_bounded(votes, unparsed):
    reward = reward_of_votes(votes, unparsed)
    assert 0 <= reward["reward"] <= 1 and 0 <= reward["unparsed"] <= 1
    assert all(map(math.isfinite, reward.values()))
