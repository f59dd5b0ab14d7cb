"""Models that a job names, looked at where they are."""

import pytest

from rljob_worker.rehearsal.inputs.input_check import check_inputs
from rljob_worker.rehearsal.inputs.remote_paths import remote_paths
from rljob_worker.tests.documents import job

GRADER = {"name": "grader", "run": "rljob_worker.services:reward_model"}
HUB = {"HF_HUB_OFFLINE": "1"}


@pytest.mark.parametrize("environment", [{}, HUB])
def test_a_job_without_an_actor_is_looked_at(tmp_path, environment):
    (tmp_path / "model").mkdir()
    spec = job(models=[{"name": "policy", "path": "model"}]).spec
    problems = [finding.problem for finding in check_inputs(spec, tmp_path, environment).found]
    assert [problem.path for problem in problems if "config.json" in problem.message] == ["spec.models[0].path"]


def test_the_model_of_a_shipped_service_is_looked_for_as_those_of_the_job(tmp_path):
    own = {"name": "own", "run": "mine:app", "options": {"path": "not/known"}}
    spec = job(services=[GRADER | {"options": {"path": "some/grader"}}, own]).spec
    assert list(remote_paths(spec, tmp_path)) == ["some/model", "some/grader"]
    (tmp_path / "some" / "grader").mkdir(parents=True)
    assert list(remote_paths(spec, tmp_path)) == ["some/model"]
    [problem] = [
        finding.problem for finding in check_inputs(spec, tmp_path).found if "services" in finding.problem.path
    ]
    assert problem.path == "spec.services[0].options.path"
    assert "no model is there: " in problem.message and "has no config.json, and holds nothing" in problem.message


def test_a_service_whose_model_is_nowhere_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    spec = job(services=[GRADER | {"options": {"path": "some/grader"}}]).spec
    lacking = {finding.problem.path: finding.problem for finding in check_inputs(spec, tmp_path, HUB, scratch).lacking}
    assert lacking["spec.services[0].options.path"].message.startswith("there is no directory some/grader here, ")
