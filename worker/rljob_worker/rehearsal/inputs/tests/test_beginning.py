"""Runs that weights are to come from."""

import json

import pytest

from rljob_api.loading.load import parse_job
from rljob_api.planning.planner import plan
from rljob_api.vocabulary import keys
from rljob_worker.checkpoint.manifest import MANIFEST, Manifest
from rljob_worker.job_paths import with_absolute_paths
from rljob_worker.rehearsal.inputs.beginning import beginning_findings
from rljob_worker.rehearsal.tests.good_job import CONFIG, write

MANIFEST_TEXT = Manifest(step=1, attempt=0, plan_hash="", score=None, files={}).to_json()
CHECKPOINT = "run/checkpoints/step-00000001-0"


def text(*arguments):
    return write(*arguments).read_text()


@pytest.fixture
def folder(tmp_path):
    """A job, and the run of another whose model has two layers."""
    config = json.dumps(CONFIG | {"num_hidden_layers": 2, "vocab_size": 24})
    other = parse_job(text(tmp_path, {"other/config.json": config}, {"models.0.path": "other"}))
    (tmp_path / CHECKPOINT).mkdir(parents=True)
    (tmp_path / CHECKPOINT / MANIFEST).write_text(MANIFEST_TEXT)
    (tmp_path / "run" / keys.PLAN_KEY).write_text(plan(with_absolute_paths(other, tmp_path)).canonical_json())
    return tmp_path


@pytest.mark.parametrize("place", ["run", CHECKPOINT])
def test_weights_of_another_architecture_are_reported(folder, place):
    job = parse_job(text(folder, {}, {"checkpoint": {"initFrom": place}}))
    (problem,) = [item.problem for item in beginning_findings(job.spec, folder)]
    assert (problem.path, problem.found) == ("spec.checkpoint.initFrom", place)
    assert problem.message.startswith(
        "its actor has vocabulary 24 where this job's has 16, layers 2 where this job's has 1:"
    )


def test_weights_of_the_same_model_are_accepted(folder):
    job = parse_job(text(folder, {}, {"models.0.path": "other", "checkpoint": {"initFrom": "run"}}))
    assert list(beginning_findings(job.spec, folder)) == []
    (folder / "other" / "config.json").unlink()
    assert list(beginning_findings(job.spec, folder)) == []  # nothing is known of either
