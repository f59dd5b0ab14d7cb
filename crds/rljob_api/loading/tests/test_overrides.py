"""Tests of overriding fields of a job from the command line."""

import pytest

from rljob_api.loading.overrides import apply_overrides, written_by
from rljob_api.tests.builders import make_job, problems

DATA = {"spec": {"stop": {"steps": 5}, "models": [{"name": "actor"}]}}


@pytest.mark.parametrize(
    ("override", "spec"),
    [
        ("stop.steps=7", {"stop": {"steps": 7}, "models": [{"name": "actor"}]}),
        ("spec.stop.steps=7", {"stop": {"steps": 7}, "models": [{"name": "actor"}]}),
        ("models.0.path=a=b", {"stop": {"steps": 5}, "models": [{"name": "actor", "path": "a=b"}]}),
        ("models[0].path=a[1]", {"stop": {"steps": 5}, "models": [{"name": "actor", "path": "a[1]"}]}),
        ("spec.models[1]={name: x}", {"stop": {"steps": 5}, "models": [{"name": "actor"}, {"name": "x"}]}),
        ("models.1={name: x}", {"stop": {"steps": 5}, "models": [{"name": "actor"}, {"name": "x"}]}),
        ("stop=null", {"stop": None, "models": [{"name": "actor"}]}),
        ("models[1].name=x", {"stop": {"steps": 5}, "models": [{"name": "actor"}, {"name": "x"}]}),
        ("env[0].name=A", {"stop": {"steps": 5}, "models": [{"name": "actor"}], "env": [{"name": "A"}]}),
        ("env[0]={name: A}", {"stop": {"steps": 5}, "models": [{"name": "actor"}], "env": [{"name": "A"}]}),
        ("a.b=1e-3", {"stop": {"steps": 5}, "models": [{"name": "actor"}], "a": {"b": 0.001}}),
    ],
)
def test_an_override_sets_one_value(override, spec):
    changed, result = apply_overrides(DATA, [override])
    assert changed == {"spec": spec}
    assert result == []


def test_the_document_itself_is_left_alone():
    apply_overrides(DATA, ["stop.steps=7"])
    assert DATA["spec"]["stop"]["steps"] == 5


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("stop.steps", "PATH=VALUE"),
        ("stop..steps=1", "PATH=VALUE"),
        ("stop.steps.x=1", "spec.stop.steps is a plain value"),
        ("stop.steps.x.y=1", "spec.stop.steps is a plain value"),
        ("models.2.name=x", "spec.models is a list of 1, and 2 is not an index of it"),
        ("models[-1].name=x", "spec.models is a list of 1, and -1 is not an index of it"),
        ("models.first=x", "spec.models is a list of 1, and first is not an index of it"),
        ("models.name=x", "spec.models is a list of 1, and name is not an index of it"),
        ("seed=[1", "not YAML"),
    ],
)
def test_an_override_that_cannot_be_says_why(override, message):
    _, (problem,) = apply_overrides(DATA, [override])
    assert override in problem.path
    assert message in problem.message and problem.fix


def test_what_to_write_in_place_of_an_index_is_said():
    _, (problem,) = apply_overrides(DATA, ["models[5].path=x"])
    assert problem.fix == "Write an index from 0 to 0, or 1 to append."


def test_overrides_are_checked_like_the_file():
    assert make_job("metadata.name=other").name == "other"
    (problem,) = problems("stop.stepz=3")
    assert problem.path == "spec.stop.stepz"
    assert "steps" in problem.fix


@pytest.mark.parametrize(
    ("path", "override"),
    [
        ("spec.data.train[0].path", "data.train[0].path=x"),
        ("spec.data.train[0].weight", None),
        ("spec.stop.steps", "stop.steps=2"),
        ("spec.stop", None),
        ("spec.rewards[0].options", "rewards[0].options.scale=2"),
        ("spec.rewards[0].run", None),
        ("spec.stopping", None),
        ("spec.nosuch", "nosuch.field=1"),
        ("spec.nosuch.field", "nosuch.field=1"),
        ("spec.env[0]", "env[0].name=A"),
        ("spec.algorithm.kl.coefficient", "algorithm={name: GRPO}"),
        ("metadata.name", "metadata.name=a"),
        ("", None),
    ],
)
def test_who_wrote_what_stands_at_a_path(path, override):
    overrides = [
        "data.train.0.path=y",
        "stop.steps=1",
        "data.train[0].path=x",
        "stop.steps=2",
        "algorithm={name: GRPO}",
        "rewards[0].options.scale=2",
        "nosuch.field=1",
        "env[0].name=A",
        "metadata.name=a",
    ]
    in_file = {"spec", "spec.data.train[0].path", "spec.stop", "spec.stop.steps", "spec.rewards[0].options", "metadata"}
    assert written_by(path, overrides, in_file) == override


def test_a_mistake_of_an_override_is_reported_as_one():
    (problem,) = problems("stop.steps=many")
    assert str(problem).startswith("spec.stop.steps (--set stop.steps=many): ")
    (problem,) = problems("nosuch.field=1")
    assert str(problem).startswith("spec.nosuch (--set nosuch.field=1): ")


def test_an_override_of_something_that_is_no_mapping():
    _, (problem,) = apply_overrides([1], ["seed=1"])
    assert "list" in problem.message
    assert [problem.path for problem in problems("seed=1", text="just a text")] == ["--set seed=1", ""]
