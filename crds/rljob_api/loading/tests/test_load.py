"""Tests of loading jobs from text and from objects of the API server."""

import subprocess
import sys

import pytest

from rljob_api import ExitCode, InvalidJobError, job_from_object, parse_job
from rljob_api.loading.load import with_current_names
from rljob_api.loading.structure import check_structure
from rljob_api.tests.builders import FULL_EXAMPLE, SMALL, make_job

SERVER_SET = {"uid": "1", "resourceVersion": "7", "generation": 1, "creationTimestamp": "2024-01-01T00:00:00Z"}


def test_an_object_of_the_api_server_is_the_job_that_was_written():
    body = make_job().to_json()
    body = {**body, "metadata": {**body["metadata"], **SERVER_SET}, "status": {"phase": "Running"}}
    assert job_from_object(body) == make_job()


def test_an_invalid_object_raises_every_problem():
    body = make_job().to_json()
    body["spec"]["rollout"]["topP"] = 0.5
    body["spec"]["stop"]["stepz"] = 3
    with pytest.raises(InvalidJobError) as caught:
        job_from_object(body)
    assert [problem.path for problem in caught.value.problems] == ["spec.stop.stepz", "spec.rollout.topP"]
    assert caught.value.exit_code is ExitCode.INVALID_JOB
    assert "the job has 2 problems" in str(caught.value)


def test_a_valid_text_is_a_job():
    assert parse_job(SMALL).spec.data.batch_size == 8


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "0 documents"),
        ("just text", "mapping of fields"),
        (SMALL + "---\n" + SMALL, "2 documents"),
        ("a: [", "YAML"),
    ],
)
def test_what_is_no_job_says_so(text, words):
    with pytest.raises(InvalidJobError, match=words):
        parse_job(text)


def test_the_api_imports_nothing_heavy():
    script = "import sys, rljob_api; rljob_api.parse_job(sys.stdin.read()); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], input=FULL_EXAMPLE, capture_output=True, text=True, check=True
    )
    heavy = {"torch", "numpy", "pyarrow", "transformers", "kubernetes", "vllm", "ray", "rich", "click"}
    assert heavy.isdisjoint(done.stdout.split())


@pytest.mark.parametrize(("written", "means"), [(True, "Full"), (False, "None")])
def test_a_field_that_has_moved_is_read_where_it_is_now(written, means):
    job = make_job().to_json()
    training = {**job["spec"].get("training", {}), "activationCheckpointing": written, "learningRate": 0.5}
    training.pop("memory", None)
    result, problems = check_structure(with_current_names({**job, "spec": {**job["spec"], "training": training}}))
    assert problems == [] and result is not None
    assert result.spec.training.memory.activation_checkpointing == means
    assert result.spec.training.learning_rate == 0.5


@pytest.mark.parametrize("document", [None, "text", {}, {"spec": 3}, {"spec": {"training": None}}])
def test_what_is_no_job_stays_what_it_is(document):
    assert with_current_names(document) is document


def test_todays_jobs_stay_as_they_are():
    job = make_job().to_json()
    assert with_current_names(job) is job
