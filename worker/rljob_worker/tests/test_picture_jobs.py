"""Whole jobs of a policy that sees: pictures reach rollout, rewards, training, samples and the exported model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForImageTextToText

from rljob_worker.built_once import build_once
from rljob_worker.checkpoint.export import export_run
from rljob_worker.tests.baselines import write_files
from rljob_worker.tests.comparable import PRECISION, on_workers
from rljob_worker.tests.conftest import FinishedRun
from rljob_worker.tests.jobs import DISAGGREGATED, Run, run_job
from rljob_worker.tests.metrics import assert_learnt_the_same, without_times
from rljob_worker.tests.picture_jobs import FILES, SEEN, patches_made, picture_job, write_seeing
from rljob_worker.tests.test_resume import checkpoint_digest
from rljob_worker.vision.checkpoint_files import read_vision_files


@pytest.fixture(scope="session")
def seeing(session_folder: Path) -> Path:
    """A tiny model that sees, with its data."""
    return build_once(session_folder / "seeing", write_seeing)


@pytest.fixture
def one_worker(seeing: Path, finished_run: FinishedRun) -> Run:
    return finished_run(picture_job(seeing, on_workers(1)), FILES)


def run_pictures(job: dict[str, Any], folder: Path, *marks: str) -> Run:
    write_files(folder, FILES | dict.fromkeys(marks, ""))
    run = run_job(job, folder)
    assert run.code == 0, run.output + run.logs
    return run


@pytest.mark.slow
def test_a_policy_that_sees_is_trained_and_exported(seeing: Path, tmp_path: Path, one_worker: Run) -> None:
    run = one_worker
    for step in (step for step in run.metrics if step["step"]):
        assert step["mismatch/probs_diff_max"] <= 1e-4
        assert step["update/gradient_norm"] > 0
    shown = [
        json.loads(line).get("pictures", []) for line in (run.directory / "samples.jsonl").read_text().splitlines()
    ]
    assert [picture[:23] for pictures in shown for picture in pictures][:1] == ["data:image/jpeg;base64,"]
    assert "data:image/jpeg;base64," in (run.directory / "report.html").read_text()
    export_run(run.directory, tmp_path / "out", 2, merged=False)
    assert read_vision_files(str(tmp_path / "out")) == read_vision_files(str(seeing / "model"))
    assert AutoModelForImageTextToText.from_pretrained(tmp_path / "out").config.model_type == "qwen2_5_vl"


@pytest.mark.slow
def test_two_workers_learn_from_pictures_what_one_does(seeing: Path, tmp_path: Path, one_worker: Run) -> None:
    assert_learnt_the_same(run_pictures(picture_job(seeing, on_workers(2)), tmp_path), one_worker, PRECISION)


@pytest.mark.slow
def test_rollout_and_training_make_the_same_patches(seeing: Path, tmp_path: Path, one_worker: Run) -> None:
    """In processes of their own: one that generates, two that train."""
    run = run_pictures(picture_job(seeing, DISAGGREGATED), tmp_path)
    assert_learnt_the_same(run, one_worker, PRECISION)
    assert all(step["mismatch/probs_diff_max"] <= 1e-4 for step in run.metrics if step["step"])
    generated, *trained = sorted(patches_made(tmp_path), key=len, reverse=True)
    assert len(generated) == 8 and len(trained) == 2  # all the pictures there are, in two steps of four prompts
    assert generated == {digest: patches for made in trained for digest, patches in made.items()}


@pytest.mark.slow
def test_a_killed_run_with_pictures_ends_like_one_that_was_not(seeing: Path, tmp_path: Path, one_worker: Run) -> None:
    killed = run_pictures(picture_job(seeing, on_workers(1)), tmp_path, "kill")
    assert "restart 1 of 3, from the checkpoint of step 1" in killed.output
    assert checkpoint_digest(killed.directory) == checkpoint_digest(one_worker.directory)
    assert without_times(killed.metrics) == without_times(one_worker.metrics)


@pytest.mark.slow
def test_a_run_with_pictures_is_the_reference_of_another(seeing: Path, tmp_path: Path, one_worker: Run) -> None:
    models = [
        {"name": "actor", "path": str(seeing / "model")},
        {"name": "reference", "path": str(one_worker.directory)},
    ]
    run = run_pictures(picture_job(seeing, on_workers(1), models=models, stop={"steps": 1}), tmp_path)
    assert run.metrics[-1]["kl/reference"] > 0  # of what two steps changed; without them it is 0 in the first step


@pytest.mark.slow
def test_a_policy_that_is_trained_blind_ends_the_job(seeing: Path, tmp_path: Path) -> None:
    """Patches are black in rollout and training alike, so that nothing differs between the two."""
    write_files(tmp_path, {"seen.py": SEEN.replace("return made", "made.pixel_values[:] = 0\n    return made")})
    run = run_job(picture_job(seeing, on_workers(1)), tmp_path)
    assert run.code == 65, run.output + run.logs
    assert "policy actor does not see" in run.output and "of the data's column images" in run.output
