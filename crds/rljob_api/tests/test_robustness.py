"""Tests that a damaged job either runs or says what is wrong."""

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api.loading.document import read_document
from rljob_api.loading.load import parse_job
from rljob_api.picture.graph_svg import render_svg
from rljob_api.planning.advice import warnings_of
from rljob_api.planning.planner import plan
from rljob_api.tests.builders import FULL_EXAMPLE
from rljob_api.vocabulary.problem import InvalidJobError

FULL = read_document(FULL_EXAMPLE).value


def places(value, path=()):
    """The path of everything inside a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in items:
        yield (*path, key)
        yield from places(below, (*path, key))


PLACES = list(places(FULL))
WORDS = [
    "rollout",
    "reward",
    "update",
    "actor",
    "reference",
    "critic",
    "train",
    "PPO",
    "K1",
    "Reward",
    "m:f",
    "rewards",
]
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.floats(allow_nan=False, allow_infinity=False, width=16),
    st.sampled_from(WORDS),
    st.text("abXY_ :", max_size=5),
    st.lists(st.sampled_from(WORDS), max_size=2),
    st.dictionaries(st.sampled_from(["name", "run", "path", "nmae"]), st.sampled_from(WORDS), max_size=2),
)


@st.composite
def damaged(draw):
    """The full example with a few values replaced, left out, or misspelt."""
    data = copy.deepcopy(FULL)
    for path in draw(st.lists(st.sampled_from(PLACES), min_size=1, max_size=4)):
        holder = data
        for part in path[:-1]:
            try:
                holder = holder[part]
            except (KeyError, IndexError, TypeError):
                holder = None
        if isinstance(holder, dict) and path[-1] in holder:
            value = holder.pop(path[-1])
            action = draw(st.sampled_from(["replace", "replace", "leave out", "misspell"]))
            if action == "replace":
                holder[path[-1]] = draw(JUNK)
            elif action == "misspell":
                holder[path[-1][:-1] + "_"] = value
        elif isinstance(holder, list) and path[-1] in range(len(holder)):
            holder[path[-1]] = draw(JUNK)
    return data


def assert_runs_or_says_what_is_wrong(data):
    try:
        result = plan(parse_job(json.dumps(data)))
    except InvalidJobError as error:
        for problem in error.problems:
            assert problem.message
            assert problem.fix.endswith((".", "?")), problem
        assert len({(problem.path, problem.message) for problem in error.problems}) == len(error.problems)
    else:
        assert render_svg(result)
        warnings_of(result)


@settings(max_examples=40)
@given(damaged())
def test_a_damaged_job_runs_or_says_what_is_wrong(data):
    assert_runs_or_says_what_is_wrong(data)


@pytest.mark.slow
@settings(max_examples=1000)
@given(damaged())
def test_so_does_each_of_many_damaged_jobs(data):
    assert_runs_or_says_what_is_wrong(data)
