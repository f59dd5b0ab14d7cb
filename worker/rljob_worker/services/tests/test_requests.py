"""Validation of requests, and filled-in templates."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.services.requests import BadRequest, fill_template, messages_of, rows_of_body, texts_of

ROW = {"prompt": "2+2", "response": "{4}"}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (None, "with one row or more"),
        ([ROW], "with one row or more"),
        ({"rows": []}, "with one row or more"),
        ({"rows": ["text"]}, "rows[0] is not an object"),
        ({"rows": [ROW, {"prompt": "x"}]}, "rows[1].response is not text"),
        ({"rows": [{"prompt": 4, "response": "x"}]}, "rows[0].prompt is not text"),
    ],
)
def test_what_is_no_row_is_named(body, words):
    with pytest.raises(BadRequest) as caught:
        rows_of_body(body)
    assert words in str(caught.value)
    assert rows_of_body({"rows": [ROW]}) == [ROW]


def test_inputs_and_messages_are_those_of_openai():
    assert texts_of({"input": "a"}) == ["a"] and texts_of({"input": ["a", "b"]}) == ["a", "b"]
    message = {"role": "user", "content": "hello"}
    assert messages_of({"messages": [message | {"name": "me"}]}) == [message]
    for body in ({}, {"input": [1]}, {"input": []}):
        with pytest.raises(BadRequest):
            texts_of(body)
    for body in ({}, {"messages": []}, {"messages": [{"role": "user"}]}, {"messages": ["hello"]}):
        with pytest.raises(BadRequest):
            messages_of(body)


def test_only_names_that_the_row_has_are_filled_in():
    assert fill_template("{prompt} -> {response} {other} {", ROW) == "2+2 -> {4} {other} {"
    assert fill_template("{{prompt}}", ROW) == "{2+2}"


@given(st.text(), st.text())
def test_what_is_filled_in_is_not_looked_at_again(prompt, response):
    row = {"prompt": prompt, "response": response}
    assert fill_template("{prompt}|{response}", row) == f"{prompt}|{response}"


@given(st.text())
def test_a_text_without_names_stays(text):
    assert fill_template(text, {}) == text
