"""Tests of the starter job."""

import pytest

from rljob_api.loading.document import read_document
from rljob_api.loading.load import parse_job
from rljob_api.loading.starter import starter_yaml
from rljob_api.planning.advice import warnings_of
from rljob_api.planning.planner import plan
from rljob_api.vocabulary.problem import InvalidJobError


def test_the_starter_runs_as_it_is():
    job = parse_job(starter_yaml("my-job"))
    assert job.name == "my-job"
    assert warnings_of(plan(job)) == []


def test_the_commented_parts_of_the_starter_run_too():
    text = starter_yaml("my-job")
    start = text.index("  # dag:")
    dag = text[start:].replace("  # ", "  ", 1).replace("\n  #", "\n  ").replace("         # unset", "  # unset")
    assert read_document(text[:start] + dag).problems == []
    job = parse_job(text[:start] + dag.replace("\n     ", "\n    "))
    assert [stage.name for stage in plan(job).stages] == ["rollout", "reference", "reward", "advantage", "update"]


def test_a_name_that_a_job_cannot_have():
    with pytest.raises(InvalidJobError, match="Write my-job"):
        starter_yaml("My Job")
