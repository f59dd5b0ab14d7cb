"""Tests of which jobs may resume a run."""

import pytest

from rljob_api.lifetime.changes import resume_changes
from rljob_api.tests.builders import make_job

BASE = make_job().spec


def changes(*overrides):
    return resume_changes(BASE, make_job(*overrides).spec)


def test_the_same_job_may_go_on():
    assert changes() == []


@pytest.mark.parametrize(
    "override",
    [
        "models.0.path=other",
        "seed=1",
        "data.train.0.path=other.parquet",
        "data.train.1={path: more.parquet}",
        "data.train.0.weight=2",
        "data.batchSize=16",
        "data.promptColumn=question",
        "data.maxPromptTokens=8",
        "data.shuffle=false",
        "data.systemPrompt=Hello",
        "data.applyChatTemplate=true",
        "algorithm.groupSize=2",
        "algorithm.sampling.dynamic=true",
        "algorithm.advantage.estimator=RLOO",
        "training.precision=Float64",
        "training.optimizer.states=Int8",
        "checkpoint.initFrom=other",
    ],
)
def test_what_must_stay(override):
    (change,) = changes(override)
    assert not change.allowed
    assert len(change.refused.split()) > 5  # the reason, in words


def test_a_format_that_is_written_out_is_the_one_that_was_chosen():
    assert changes("training.precision=Float32") == []


def test_the_engine_must_stay():
    training = BASE.training.model_copy(update={"engine": "Megatron"})
    (change,) = resume_changes(BASE, BASE.model_copy(update={"training": training}))
    assert not change.allowed
    assert "written by another engine" in change.refused


@pytest.mark.parametrize(
    "override",
    [
        "stop.steps=20",
        "stop.rewardAbove=0.9",
        "checkpoint.everySteps=5",
        "validation.maxRows=10",
        "data.validation=[{path: v.parquet}]",
        "training.learningRate=1.0e-5",
        "workerGroups=[{name: train, replicas: 2}]",
        "rollout.maxResponseTokens=64",
        "algorithm.loss.clipHigh=0.28",
        "rewards.0.weight=2.0",
        "dataBuffer.memory=2Gi",
    ],
)
def test_what_may_change(override):
    result = changes(override)
    assert result
    assert all(change.allowed for change in result)


def test_another_algorithm_is_refused():
    name, estimator = (change for change in changes("algorithm={name: PPO, groupSize: 4}") if not change.allowed)
    assert (name.path, estimator.path) == ("algorithm.name", "algorithm.advantage.estimator")
    assert "state of another algorithm" in name.refused
    assert "one estimator has a critic" in estimator.refused


V_PARQUET = {"path": "v.parquet", "subset": None, "split": None, "name": None, "weight": None}


@pytest.mark.parametrize(
    ("override", "path", "old", "new"),
    [
        ("stop.steps=20", "stop.steps", 10, 20),
        ("models.0.path=other", "models[0].path", "models/tiny", "other"),
        ("data.validation=[{path: v.parquet}]", "data.validation", [], [V_PARQUET]),
    ],
)
def test_a_change_tells_both_values(override, path, old, new):
    (change,) = changes(override)
    assert (change.path, change.old, change.new) == (path, old, new)


def test_a_run_goes_on_with_partial_rollouts_or_without_them():
    partial = "rollout.partial={tokensPerRound: 8, maxCarries: 3}"
    (change,) = changes(partial)
    assert (change.path, change.old, change.allowed) == ("rollout.partial", None, False)
    before, after = make_job(partial).spec, make_job(partial.replace("8", "12").replace("3", "4")).spec
    assert [(change.path, change.allowed) for change in resume_changes(before, after)] == [
        ("rollout.partial.tokensPerRound", True),
        ("rollout.partial.maxCarries", True),
    ]
    (change,) = resume_changes(before, make_job(partial, "rollout.maxResponseTokens=31").spec)
    assert change.path == "rollout.maxResponseTokens" and "may be longer than what it allows" in str(change.refused)
    assert all(change.allowed for change in changes("rollout.maxResponseTokens=31"))
    (change,) = resume_changes(before, BASE)
    assert change.path == "rollout.partial" and "wait for later steps" in str(change.refused)


def test_a_run_goes_on_with_conversations_or_without_them_and_with_as_many_rows():
    (change,) = changes("rollout.conversation={}")
    assert (change.path, change.allowed) == ("rollout.conversation", False)
    before = make_job("rollout.conversation={maxRows: 2, maxTurns: 4}").spec
    after = make_job("rollout.conversation={maxRows: 3, maxTurns: 5}").spec
    assert [(change.path, change.allowed) for change in resume_changes(before, after)] == [
        ("rollout.conversation.maxTurns", True),
        ("rollout.conversation.maxRows", False),
    ]
