"""Rewards written for TRL and verl, row by row."""

import asyncio

import pytest

from rljob_worker.errors import InvalidJob
from rljob_worker.rewards.forms import in_row_form
from rljob_worker.rewards.loading import is_async, load

ROW = {
    "prompt": "2+2=", "response": "4", "reference": "4", "answer": "4", "source": "sums", "row_id": 3,
    "num_response_tokens": 1,
}  # fmt: skip


def own(row, *, limit=1):
    return len(row["response"]) <= limit


def trl_exact(prompts, completions, answer, **kwargs):
    assert prompts == ["2+2="] and kwargs["source"] == ["sums"] and "row_id" not in kwargs
    return [float(completion == right) for completion, right in zip(completions, answer, strict=True)]


def trl_length(completions, scale):
    return [scale * len(completion) for completion in completions]


def trl_silent(completions, **kwargs):
    return [None]


def trl_default(completions, hint=None):
    return [len(hint[0])]


async def trl_judge(completions, **kwargs):
    await asyncio.sleep(0)
    return [1.0]


def verl_score(data_source, solution_str, ground_truth, extra_info=None):
    assert extra_info == {"answer": "4"}
    return {"score": 0.5, "right": solution_str == ground_truth, "source": data_source, "pred": solution_str}


def verl_plain(data_source, solution_str, ground_truth, extra_info, penalty=0.0):
    return 1.0 - penalty


def described(name, column="answer", columns=("answer",), **options):
    run = f"{__name__}:{name}"
    return {"name": "r", "run": run, "column": column, "columns": columns, "options": options, "access": None}


def loaded(name, **options):
    function = load(described(name, **options)).function
    return function, lambda: function(ROW, **options)


def test_a_function_of_a_row_is_left_as_it_is():
    assert in_row_form(own) is own
    assert in_row_form(len) is len


@pytest.mark.parametrize(
    ("name", "options", "reward"),
    [
        ("own", {}, True),
        ("trl_exact", {}, {"reward": 1.0, "none_fraction": False}),
        ("trl_length", {"scale": 3}, {"reward": 3, "none_fraction": False}),
        ("trl_silent", {}, {"reward": 0.0, "none_fraction": True}),
        ("verl_score", {}, {"reward": 0.5, "right": True, "answer": "4"}),
        ("verl_plain", {"penalty": 0.25}, 0.75),
    ],
)
def test_what_a_row_gets(name, options, reward):
    _, call = loaded(name, **options)
    assert call() == reward


def test_an_async_one_stays_async():
    function, call = loaded("trl_judge")
    assert is_async(function)
    assert asyncio.run(call())["reward"] == 1.0


def test_an_option_that_the_function_does_not_take_is_reported_before_the_first_row():
    with pytest.raises(InvalidJob, match="cannot be called as .*limit"):
        loaded("verl_plain", limit=3)
    with pytest.raises(InvalidJob, match="gets 'completions' from every row; take it out of the options"):
        loaded("trl_length", completions=["x"])


@pytest.mark.parametrize(
    ("name", "options", "column", "words"),
    [
        ("trl_length", {}, "answer", "missing a required argument: 'scale'; it is declared as (completions, scale)"),
        ("trl_exact", {}, None, "missing a required argument: 'answer'"),
        ("verl_score", {}, None, "missing a required argument: 'ground_truth'"),
    ],
)
def test_a_parameter_that_no_column_and_no_option_fills_is_reported_before_the_first_row(name, options, column, words):
    with pytest.raises(InvalidJob, match="Rows bring those columns that rewards of the job name") as caught:
        load(described(name, column, () if column is None else (column,), **options))
    assert words in str(caught.value)


def test_what_has_a_default_may_lack():
    assert load(described("trl_default", None, ())).function(ROW | {"hint": "x"})["reward"] == 1
    assert load(described("verl_plain", "answer", ("answer",))).function(ROW) == 1.0
