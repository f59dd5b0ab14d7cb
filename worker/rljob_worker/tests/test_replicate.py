"""A whole job whose pods have a set of weights each: it learns what one does that shares out one set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rljob_api.tests.patience import PATIENCE_SECONDS
from rljob_worker.tests.jobs import CPU, Run, make_job, run_job
from rljob_worker.tests.metrics import assert_learnt_the_same


def finished(tiny: Path, folder: Path, *, replicate: int, num_steps: int) -> Run:
    """Two pods of a worker; a job that stopped earlier in the folder goes on."""
    training: dict[str, Any] = {
        "learningRate": 1.0e-3,
        "precision": "Float64",
        "tokensPerMicroBatch": 128,
        "parallelism": {"replicate": replicate},
    }
    job = make_job(
        tiny,
        workerGroups=[{"name": "train", "replicas": 2, "accelerator": CPU}],
        training=training,
        checkpoint={"everySteps": 1},
        validation={"maxRows": 8, "everySteps": 1},
        stop={"steps": num_steps},
        dataBuffer={"memory": "96Mi", "deadlineSeconds": int(PATIENCE_SECONDS)},
    )
    run = run_job(job, folder, timeout_seconds=8 * PATIENCE_SECONDS)
    assert run.code == 0, f"{run.output}{run.logs}"
    return run


def test_a_job_with_replicas_learns_the_same_and_goes_on_without_them(tiny: Path, tmp_path: Path) -> None:
    shared = finished(tiny, tmp_path / "shared", replicate=1, num_steps=2)
    first = finished(tiny, tmp_path / "replicas", replicate=2, num_steps=1)
    assert_learnt_the_same(first, shared, 1e-9)
    assert_learnt_the_same(finished(tiny, tmp_path / "replicas", replicate=1, num_steps=2), shared, 1e-9)
