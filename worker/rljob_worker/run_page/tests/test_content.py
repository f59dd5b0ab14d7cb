"""What a page shows of a run, and of long ones."""

import json

import pytest

from rljob_worker.metrics.tables import flattened
from rljob_worker.run_page.content import MAX_POINTS, MAX_SAMPLES, curves, read_content, shown_samples


def test_a_metric_that_comes_late_or_is_missing_has_gaps():
    records = [{"step": 1, "a": 1.0}, {"step": 2, "a": None, "b": 2}, {"step": 3, "b": "no number"}]
    assert curves(records) == ([1, 2, 3], {"a": [1.0, None, None], "b": [None, 2, None]})


def test_long_runs_show_means_of_neighbours():
    """Of 2500 steps 3 at a time: steps 1, 2, 3 at 2, and so on; the last point stands for one step alone."""
    steps, metrics = curves({"step": step, "a": step if step % 2 else None} for step in range(1, 2501))
    assert len(steps) == 834 <= MAX_POINTS
    assert steps[:2] == [2, 5] and steps[-1] == 2500
    assert metrics["a"][:2] == [2, 5] and metrics["a"][-1] is None


def test_of_many_samples_the_first_and_the_newest_are_shown():
    found = shown_samples({"step": step, "response": "x" * 5000, "tokens": {}} for step in range(10_000))
    assert len(found) == MAX_SAMPLES
    assert [found[0]["step"], found[249]["step"], found[250]["step"], found[-1]["step"]] == [0, 249, 9250, 9999]
    assert found[0]["response"].endswith("… (5000 characters)") and "tokens" not in found[0]


def test_a_job_as_fields():
    spec = {"seed": 0, "models": [{"name": "actor"}], "stop": {"steps": [1, 2]}, "dag": None}
    assert dict(flattened(spec)) == {"seed": "0", "models.0.name": "actor", "stop.steps": "[1, 2]", "dag": "null"}


@pytest.mark.parametrize(
    ("note", "plan", "state"),
    [
        ({"phase": "Failed", "total_steps": 9, "cause": "disk full"}, {}, "Failed after 2 of 9 steps: disk full"),
        ({}, {"spec": {"stop": {"steps": 7}}}, "2 of 7 steps"),  # a cluster's, which has no supervisor
        ({}, {}, "2 steps"),
    ],
)
def test_a_page_says_how_far_a_run_is_and_no_more_than_is_known(tmp_path, note, plan, state):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    (tmp_path / "run.json").write_text(json.dumps(note))
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    assert read_content(tmp_path).state == state
