"""Tests of which fields of a job may change."""

from rljob_api.lifetime.changes import IMMUTABLE, immutable_changes, raises_steps
from rljob_api.tests.builders import make_job


def changes(*overrides, before=()):
    problems = immutable_changes(make_job(*before).spec, make_job(*before, *overrides).spec)
    return [(problem.path, problem.found) for problem in problems]


def test_what_may_change_is_no_problem():
    assert changes("suspend=true", "lifecycle.stallSeconds=5", "failurePolicy.maxRestarts=9") == []


def test_the_number_of_generators_may_change_and_its_bounds_may_not():
    groups = "workerGroups=[{name: train}, {name: rollout, elastic: {min: 1, max: %d}}]"
    before = (groups % 4, "rollout.maxStaleness=1")
    assert changes("generators=2", before=before) == []
    ((path, _),) = changes(groups % 5, before=before)
    assert path == "spec.workerGroups"


def test_what_may_not_change_is_named_with_what_stands_there():
    assert changes("stop.rewardAbove=0.5", "seed=3") == [("spec.seed", "3"), ("spec.stop.rewardAbove", "0.5")]


def test_steps_may_be_raised_where_the_learning_rate_stays_as_it_was_planned():
    assert changes("stop.steps=11", before=("stop.steps=10",)) == []
    assert changes("stop.steps=9", before=("stop.steps=10",)) == [("spec.stop.steps", "9")]
    falling = ("stop.steps=10", "training.schedule=Linear")
    assert changes("stop.steps=11", before=falling) == [("spec.stop.steps", "11")]
    assert changes("stop.steps=20", before=(*falling, "training.scheduleSteps=20")) == []
    assert not raises_steps(make_job().spec, make_job().spec)


def test_beside_a_field_that_may_change_others_may_not():
    change = "failurePolicy.rules=[{onExitCodes: [74], action: Restart}]"
    ((path, _),) = changes(change)
    assert path == "spec.failurePolicy.rules"


def test_the_priority_class_changes_only_while_the_job_is_suspended():
    priority = "scheduling.priorityClassName=high"
    assert changes(priority) == [("spec.scheduling.priorityClassName", '"high"')]
    assert changes(priority, before=("suspend=true",)) == []
    assert changes(priority, "suspend=false", before=("suspend=true",)) == []


def test_the_words_list_what_may_change():
    assert "suspend, lifecycle, failurePolicy.maxRestarts, generators do" in IMMUTABLE
    assert "scheduling.priorityClassName while the job is suspended" in IMMUTABLE
    assert "stop.steps may be raised" in IMMUTABLE
