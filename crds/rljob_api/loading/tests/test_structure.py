"""Tests of the messages for fields and values of the wrong structure."""

import pytest

from rljob_api.loading.structure import format_path
from rljob_api.tests.builders import FULL_EXAMPLE, SMALL, problems


def one(*overrides):
    (problem,) = problems(*overrides)
    return problem


@pytest.mark.parametrize(
    ("override", "path", "right"),
    [
        ("spec.algorthm={name: GRPO}", "spec.algorthm", "algorithm"),
        ("algorithm.group_size=4", "spec.algorithm.group_size", "groupSize"),
        ("algorithm.groupsize=4", "spec.algorithm.groupsize", "groupSize"),
        ("models.0.pth=x", "spec.models[0].pth", "path"),
        ("rewards.0.timeout=3", "spec.rewards[0].timeout", "timeoutSeconds"),
        ("algorithm.advantage.lamda=0.9", "spec.algorithm.advantage.lamda", "lambda"),
        ("metadata.nmae=x", "metadata.nmae", "name"),
        ("workerGroups=[{name: a, acelerator: {}}]", "spec.workerGroups[0].acelerator", "accelerator"),
    ],
)
def test_a_misspelt_field_names_the_nearest_right_one(override, path, right):
    problem = problems(override)[0]
    assert problem.path == path
    assert problem.fix == f"Did you mean {right}?"


def test_a_field_like_no_other_gets_the_list():
    assert one("stop.zzzz=1").fix == "Known: activeSeconds, rewardAbove, steps."


@pytest.mark.parametrize(
    ("override", "message", "fix"),
    [
        ("data.batchSize='8'", "whole number", "without quotes"),
        ("data.batchSize=many", "whole number", "Write a whole number."),
        ("data.batchSize=8.5", "whole number", "Write a whole number."),
        ("data.batchSize=true", "whole number", "Write a whole number."),
        ("data.shuffle=1", "true or false", "Write true or false."),
        ("data.shuffle=no", "true or false", "Write true or false."),
        ("metadata.name=3", "a text", "in quotes"),
        ("models={name: actor}", "a list", "[...]"),
        ("stop=5", "mapping of fields", "mapping"),
        ("training.learningRate=.nan", "finite", "finite"),
        ("data.batchSize=0", "out of range", "at least 1"),
        ("training.learningRate=0", "out of range", "above 0"),
        ("algorithm.advantage.gamma=1.5", "out of range", "at most 1"),
        ("models=[]", "the list is empty", "Write an entry."),
        ("rollout.stop=['']", "the text is empty", "Write text."),
        ("workerGroups=[{name: roll-out}]", "wrong form", "at most 12"),
        ("env=[{name: 1A, value: x}]", "wrong form", "match"),
        ("models.0.name=Actor", "wrong form", "lower-case letters"),
        ("dataBuffer.memory=16 gigs", "wrong form", "16Gi"),
        ("algorithm.kl.placement=Rewards", "not one of those", "Did you mean Reward?"),
        ("algorithm.name=GROP", "not one of those", "Did you mean GRPO?"),
        ("algorithm={name: DAPO, sampling: {oversampling: 0.5}}", "out of range", "at least 1"),
        ("algorithm={name: DAPO, sampling: {maxRounds: 0}}", "out of range", "at least 1"),
        ("training.engine=DeepSpeed", "not one of those", "FSDP"),
        ("training.betas=[0.9]", "fewer than 2", "entries"),
    ],
)
def test_a_wrong_value_says_what_is_right(override, message, fix):
    problem = one(override)
    assert message in problem.message
    assert fix in problem.fix


def test_whole_numbers_are_numbers():
    assert problems("rewards.0.weight=2") == []


def test_a_missing_field_is_named_at_its_parent():
    (problem,) = problems(text=SMALL.replace("batchSize: 8, ", ""))
    assert problem.path == "spec.data.batchSize"
    assert problem.line == 6
    assert problem.fix == "Add batchSize."


def test_problems_carry_the_line_and_what_stands_there():
    (problem,) = problems(text=SMALL.replace("steps: 10", "stepz: 10"))
    assert problem.line == 10
    assert problem.found == '{"stepz": 10}'
    assert str(problem).startswith("spec.stop.stepz (line 10): there is no such field")


def test_everything_is_reported_at_once_whatever_the_kind():
    text = FULL_EXAMPLE
    for right, wrong in {
        "groupSize: 8": "group_siez: 8",  # field
        "maxRestarts: 3": "maxRestarts: '3'",  # type
        "precision: BFloat16": "precision: bf16",  # value
        "batchSize: 128": "batchSize: 100",  # 100 prompts over 32 workers
        "run: Advantage": "run: Advantag",  # stage of the catalogue
        "clipHigh: 0.2": "clipHigh: 0.1",  # contradiction
        "suspend: false": "suspend: false\n  suspend: true",  # YAML
    }.items():
        text = text.replace(right, wrong)
    assert {problem.path for problem in problems(text=text)} == {
        "spec.suspend",
        "spec.algorithm.group_siez",
        "spec.failurePolicy.maxRestarts",
        "spec.training.precision",
        "spec.training.miniBatchRows",  # 256 does not divide 800
        "spec.data.batchSize",
        "spec.dag.stages[6].run",
        "spec.algorithm.loss.clipHigh",
    }


def test_a_misspelt_field_is_read_as_meant_so_it_is_reported_once():
    # groupSiez: 1 is both misspelt and too small for GRPO; without the guess the second would stay hidden.
    paths = [problem.path for problem in problems(text=SMALL.replace("groupSize: 4", "groupSiez: 1"))]
    assert paths == ["spec.algorithm.groupSiez", "spec.algorithm.groupSize"]


def test_paths():
    assert format_path(("spec", "models", 0, "name")) == "spec.models[0].name"
    assert format_path(()) == ""


@pytest.mark.parametrize("number", ["9" * 400, "-" + "9" * 5000, "0x" + "f" * 5000, str(1 << 63), str(-(1 << 63) - 1)])
@pytest.mark.parametrize(
    ("field", "path"),
    [("data.maxPromptTokens", "spec.data.maxPromptTokens"), ("rollout.stopTokenIds.0", "spec.rollout.stopTokenIds[0]")],
)
def test_a_whole_number_that_needs_more_than_64_bits_is_a_problem_of_its_field(field, path, number):
    result = [problem for problem in problems("rollout.stopTokenIds=[1]", f"{field}={number}") if problem.path == path]
    assert [(item.message, item.fix) for item in result] == [("the number is out of range", "It must fit in 64 bits.")]
    assert len(result[0].found) <= 80


@pytest.mark.parametrize("number", [(1 << 63) - 1, -(1 << 63)])
def test_whole_numbers_of_64_bits_are_judged_by_their_field(number):
    assert not [problem for problem in problems(f"data.maxPromptTokens={number}") if "64 bits" in problem.fix]
