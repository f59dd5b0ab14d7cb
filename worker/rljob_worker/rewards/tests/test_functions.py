"""The shipped rewards, by example."""

from decimal import Decimal

import pytest

from rljob_worker.rewards import exact_match, final_number, matches_format, math_answer
from rljob_worker.rewards.functions import number_of

GSM8K = "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\nIn all 48+24 = <<48+24=72>>72.\n#### 72"


def judged(function, response, reference="72", **options):
    """The reward and the answer."""
    result = function(row(response, reference), **options)
    return result["reward"], result["answer"]


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
    ("response", "reward", "answer"),
    [
        ("... #### 72", 1, "72"),
        ("#### 72.0", 1, "72"),
        ("#### $1,200", 0, "1200"),
        ("#### 7", 0, "7"),
        ("the answer is 72", 0, None),
        ("72 ####", 0, None),
        ("", 0, None),
    ],
)
def test_final_number_wants_the_mark(response, reward, answer):
    assert judged(final_number, response, GSM8K) == (reward, answer)


def test_final_number_without_the_mark():
    assert judged(final_number, "it is 71, no, 72.", GSM8K, needs_mark=False) == (1, "72")
    assert judged(final_number, "72, no, 71", GSM8K, needs_mark=False) == (0, "71")
    assert judged(final_number, "none", GSM8K, needs_mark=False) == (0, None)


def test_exact_match():
    assert judged(exact_match, " 72\n") == (1, "72")
    assert judged(exact_match, "72.0") == (0, "72.0")
    assert judged(exact_match, "paris", "Paris") == (0, "paris")
    assert judged(exact_match, "Paris", "paris", ignore_case=True) == (1, "paris")


def test_matches_format():
    pattern = r"<think>.*</think>\s*\d+"
    assert matches_format(row("<think>\nlong\n</think>\n42"), pattern=pattern) == 1
    assert matches_format(row("<think>\nlong\n</think>\n42 or so"), pattern=pattern) == 0


@pytest.mark.parametrize(
    ("response", "reference", "reward", "answer"),
    [
        ("#### 72", GSM8K, 1, "72"),
        ("so we get 72", GSM8K, 1, "72"),
        ("first 72, then 73", GSM8K, 0, "73"),
        (r"hence \boxed{\frac{1}{2}}", "0.5", 1, "1/2"),
        (r"hence \boxed{1/2}", r"\frac{1}{2}", 1, "1/2"),
        ("it is 0.5", r"\frac{1}{2}", 1, "1/2"),
        ("so $x = 0.5$", r"\frac{1}{2}", 1, "1/2"),
        (r"hence $x = \frac{\sqrt{3}}{2}$", r"\frac{\sqrt3}{2}", 1, "sqrt(3)/2"),
        (r"\boxed{(1, \pi)}", r"(1,\pi)", 1, "Interval.open(1, pi)"),
        (r"\boxed{(1, 2)}", "(1, 3)", 0, "Interval.open(1, 2)"),
        ("#### 1,000", "1000", 1, "1000"),
        ("no idea", "1000", 0, None),
        ("", "1000", 0, None),
    ],
)
def test_math_answer(response, reference, reward, answer):
    assert judged(math_answer, response, reference) == (reward, answer)


def test_math_answer_refuses_a_reference_without_an_answer():
    with pytest.raises(ValueError, match="the reward's `column` must be the answer"):
        math_answer(row("42", ""))
