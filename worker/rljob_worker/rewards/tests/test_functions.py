"""The shipped rewards, by example."""

from decimal import Decimal

import pytest

from rljob_worker.rewards import exact_match, final_number, matches_format, math_answer
from rljob_worker.rewards.functions import number_of

GSM8K = "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\nIn all 48+24 = <<48+24=72>>72.\n#### 72"


def row(response, reference="72"):
    return {"prompt": "", "response": response, "reference": reference}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so 6 * 7 = 42.\n#### 1,042 apples of 3", 1042),
        ("it is 41, no, 42.", 42),
        ("#### -3", -3),
        ("#### $1,234.50", Decimal("1234.5")),
        ("#### .5", Decimal("0.5")),
        ("#### 1 #### 2", 2),
        ("#### none", None),
        ("", None),
    ],
)
def test_the_final_number_of_a_text(text, number):
    assert number_of(text) == number


@pytest.mark.parametrize(
    ("response", "reward"),
    [("... #### 72", 1), ("#### 72.0", 1), ("#### 7", 0), ("the answer is 72", 0), ("72 ####", 0), ("", 0)],
)
def test_final_number_wants_the_mark(response, reward):
    assert final_number(row(response, GSM8K)) == reward


def test_final_number_without_the_mark():
    assert final_number(row("it is 71, no, 72.", GSM8K), needs_mark=False) == 1
    assert final_number(row("72, no, 71", GSM8K), needs_mark=False) == 0


def test_exact_match():
    assert exact_match(row(" 72\n")) == 1
    assert exact_match(row("72.0")) == 0
    assert exact_match(row("paris", "Paris")) == 0
    assert exact_match(row("paris", "Paris"), ignore_case=True) == 1


def test_matches_format():
    pattern = r"<think>.*</think>\s*\d+"
    assert matches_format(row("<think>\nlong\n</think>\n42"), pattern=pattern) == 1
    assert matches_format(row("<think>\nlong\n</think>\n42 or so"), pattern=pattern) == 0


@pytest.mark.parametrize(
    ("response", "reference", "reward"),
    [
        ("#### 72", GSM8K, 1),
        ("so we get 72", GSM8K, 1),
        ("first 72, then 73", GSM8K, 0),
        (r"hence \boxed{\frac{1}{2}}", "0.5", 1),
        (r"hence \boxed{1/2}", r"\frac{1}{2}", 1),
        (r"hence $x = \frac{\sqrt{3}}{2}$", r"\frac{\sqrt3}{2}", 1),
        (r"\boxed{(1, \pi)}", r"(1,\pi)", 1),
        (r"\boxed{(1, 2)}", "(1, 3)", 0),
        ("#### 1,000", "1000", 1),
        ("no idea", "1000", 0),
        ("", "1000", 0),
    ],
)
def test_math_answer(response, reference, reward):
    assert math_answer(row(response, reference)) == reward


def test_math_answer_refuses_a_reference_without_an_answer():
    with pytest.raises(ValueError, match="the reward's `column` must be the answer"):
        math_answer(row("42", ""))
