"""What a page shows of a run, and of long ones."""

import json
from contextlib import ExitStack

import pytest

from rljob_worker.metrics.tables import flattened
from rljob_worker.run_page.content import (
    MAX_POINTS,
    MAX_SAMPLES,
    RunContent,
    curves,
    job_spec,
    max_response_tokens,
    page_data,
    read_content,
    shown_samples,
)
from rljob_worker.rundir.directory import RunDirectory, RunLock, RunNote


def test_a_metric_that_comes_late_or_is_missing_has_gaps():
    records = [{"step": 1, "a": 1.0}, {"step": 2, "a": None, "b": 2}, {"step": 3, "b": "no number"}]
    assert curves(records) == ([1, 2, 3], {"a": [1.0, None, None], "b": [None, 2, None]})


def test_long_runs_show_means_of_neighbours():
    """With 2500 steps, 3 at a time: steps 1, 2, 3 at 2, and so on; the last point stands for one step alone."""
    steps, metrics = curves({"step": step, "a": step if step % 2 else None} for step in range(1, 2501))
    assert len(steps) == 834 <= MAX_POINTS
    assert steps[:2] == [2, 5] and steps[-1] == 2500
    assert metrics["a"][:2] == [2, 5] and metrics["a"][-1] is None


def test_of_many_samples_the_first_and_the_newest_are_shown():
    result = shown_samples({"step": step, "response": "x" * 5000, "tokens": {}} for step in range(10_000))
    assert len(result) == MAX_SAMPLES
    assert [result[0]["step"], result[249]["step"], result[250]["step"], result[-1]["step"]] == [0, 249, 9250, 9999]
    assert result[0]["response"].endswith("… (5000 characters)") and "tokens" not in result[0]


def test_a_job_as_fields():
    spec = {"seed": 0, "models": [{"name": "actor"}], "stop": {"steps": [1, 2]}, "dag": None}
    assert dict(flattened(spec)) == {"seed": "0", "models.0.name": "actor", "stop.steps": "[1, 2]", "dag": "null"}


def test_no_text_of_a_run_ends_the_script_it_stands_in_or_opens_a_comment():
    """`<!--<script>` swallows the end of a script as `</script>` makes one."""
    response = "</script><!--<script>"
    data = page_data([RunContent("a", "", [], {}, [], [{"response": response}], {})])
    assert "<" not in data
    assert json.loads(data)[0]["samples"] == [{"response": response}]


def test_a_page_says_who_waited_in_a_disaggregated_job(tmp_path):
    """The mean of 0.3 and 0.5 seconds; the validation before the first step has none."""
    waits = [{"step": 0, "validation/accuracy": 1.0}]
    waits += [
        {"step": step, "time/trainers_idle_seconds": seconds, "time/trainers_idle_seconds/rows": seconds}
        for step, seconds in ((1, 0.3), (2, 0.5))
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in waits))
    content = read_content(tmp_path)
    assert content.waits == "trainers waited 0.40 s per step for rows (mean of steps 1 to 2)"
    assert content.steps == [0, 1, 2]


def test_a_page_says_how_lengths_are_spread_and_what_is_carried_on(tmp_path):
    """The newest steps alone are looked at: 20 with a mean of 10 and a longest of 20 tokens."""
    lengths = [{"step": 1, "response_length/mean": 900.0, "response_length/max": 900.0}]
    lengths += [{"step": n, "response_length/mean": 10.0, "response_length/max": 20.0} for n in range(2, 22)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lengths))
    assert read_content(tmp_path).lengths == (
        "responses have 10 tokens in the mean and up to 20: a step decodes its longest for 2.0 times as long as the "
        "mean (mean of steps 2 to 21)"
    )
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(lengths[-1] | {"step": 22, "partial/age_mean": 0.5}) + "\n")
    assert "unfinished responses go on after a step" in read_content(tmp_path).lengths


@pytest.mark.parametrize("job", ["", "[]", "spec: 3", "spec: {rollout: }", "spec: {rollout: {maxResponseTokens: x}}"])
def test_a_job_that_says_nothing_of_lengths_has_the_default_limit(tmp_path, job):
    (tmp_path / "job.yaml").write_text(job)
    assert max_response_tokens(job_spec(tmp_path)) == 1024


def test_a_sample_shows_where_it_was_carried():
    (sample,) = shown_samples([{"step": 5, "response": "a", "versions": [[0, 3], [512, 4]]}])
    assert sample["versions"] == "weights of step 3, from token 513 on of step 4"


def test_a_page_has_videos_of_the_first_and_of_the_newest_steps():
    url = "data:image/png;base64," + "A" * 5000
    samples = shown_samples([{"step": step, "video": url} for step in range(100)])
    assert [sample["step"] for sample in samples if sample.get("video") == url] == [*range(8), *range(76, 100)]


@pytest.fixture
def two_steps(tmp_path):
    """The folder of a run that has taken two steps."""
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    return tmp_path


def noted(folder, phase, cause=""):
    note = RunNote(
        folder.name, phase, 1, 1, restarts=0, started_seconds=1, updated_seconds=2, total_steps=9, cause=cause
    )
    (folder / "run.json").write_text(note.to_json())


@pytest.mark.parametrize(
    ("plan", "state"),
    [({"spec": {"stop": {"steps": 7}}}, "2 of 7 steps"), ({}, "2 steps")],
)
def test_a_page_says_how_far_a_run_without_a_supervisor_is_as_on_a_cluster(two_steps, plan, state):
    (two_steps / "plan.json").write_text(json.dumps(plan))
    assert (read_content(two_steps).state, read_content(two_steps).waits) == (state, "")


def test_a_page_says_what_became_of_a_run(two_steps):
    noted(two_steps, "Failed", "disk full")
    assert read_content(two_steps).state == "Failed after 2 of 9 steps: disk full"


@pytest.mark.parametrize("name", ["metrics.jsonl", "samples.jsonl", "plan.json", "job.yaml"])
def test_a_page_opened_in_the_middle_of_a_write_shows_what_is_whole(two_steps, name):
    (two_steps / "samples.jsonl").write_text('{"step": 1, "row": 1, "prompt": "a", "response": "b"}\n')
    whole = read_content(two_steps)
    with (two_steps / name).open("a") as file:
        file.write('{"step": 3, "prompt": "half of')
    torn = read_content(two_steps)
    assert (torn.steps, torn.samples, torn.state) == (whole.steps, whole.samples, whole.state)
    assert page_data([torn])


@pytest.mark.parametrize(("lives", "phase"), [(True, "Running"), (False, "Lost")])
def test_a_page_knows_a_run_whose_supervisor_died_without_a_word(two_steps, lives, phase):
    noted(two_steps, "Running")
    with ExitStack() as held:
        if lives:
            held.enter_context(RunLock(RunDirectory(two_steps).lock))
        assert read_content(two_steps).state == f"{phase} after 2 of 9 steps"


def test_messages_of_a_sample_are_cut_as_its_texts_are():
    messages = [{"role": "user", "content": "x" * 5000}] * 100
    (sample,) = shown_samples([{"step": 1, "messages": messages}])
    assert len(sample["messages"]) == 64
    assert sample["messages"][0] == {"role": "user", "content": "x" * 4000 + "… (5000 characters)"}
