import pytest

from rljob_api.lifetime.resumption import resume_changes, resume_problems
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
        "data.batchSize=16",
        "data.promptColumn=question",
        "data.maxPromptTokens=8",
        "data.shuffle=false",
        "data.systemPrompt=Hello",
        "data.applyChatTemplate=true",
        "algorithm.groupSize=2",
        "algorithm.sampling.dynamic=true",
        "algorithm.advantage.estimator=RLOO",
        "training.precision=Float32",
        "checkpoint.initFrom=other",
    ],
)
def test_what_must_stay(override):
    found = changes(override)
    assert [change.allowed for change in found] == [False]
    (problem,) = resume_problems(found)
    assert problem.path == f"spec.{found[0].path}"
    assert "cannot change" in problem.message


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
    found = changes(override)
    assert found
    assert all(change.allowed for change in found)
    assert resume_problems(found) == []


def test_another_algorithm_is_refused():
    refused = [change.path for change in changes("algorithm={name: PPO, groupSize: 4}") if not change.allowed]
    assert refused == ["algorithm.name", "algorithm.advantage.estimator"]


def test_a_change_tells_both_values():
    (change,) = changes("stop.steps=20")
    assert (change.path, change.old, change.new) == ("stop.steps", 10, 20)
