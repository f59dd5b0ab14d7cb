"""A whole job whose pods have a set of weights each: it learns what one worker does, and goes on without replicas."""

from __future__ import annotations

from pathlib import Path

import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.tests.baselines import write_files
from rljob_worker.tests.comparable import FILES, PRECISION, comparable_job
from rljob_worker.tests.jobs import CPU, Run, run_job
from rljob_worker.tests.metrics import assert_learnt_the_same

TWO_PODS = [{"name": "train", "replicas": 2, "accelerator": CPU}]


def finished(tiny: Path, folder: Path, *, replicate: int, num_steps: int) -> Run:
    """Two pods of a worker; a job that stopped earlier in the folder goes on."""
    job = comparable_job(
        tiny, TWO_PODS, num_steps, dataBuffer={"memory": "96Mi", "deadlineSeconds": int(TEST_TIMEOUT_SECONDS)}
    )
    job["spec"]["training"]["parallelism"] = {"replicate": replicate}
    write_files(folder, FILES)
    run = run_job(job, folder, timeout_seconds=8 * TEST_TIMEOUT_SECONDS)
    assert run.code == 0, f"{run.output}{run.logs}"
    return run


@pytest.mark.slow
def test_a_job_with_replicas_learns_the_same_and_goes_on_without_them(
    tiny: Path, tmp_path: Path, one_worker: Run
) -> None:
    assert_learnt_the_same(finished(tiny, tmp_path, replicate=2, num_steps=1), one_worker, PRECISION)
    assert_learnt_the_same(finished(tiny, tmp_path, replicate=1, num_steps=2), one_worker, PRECISION)
