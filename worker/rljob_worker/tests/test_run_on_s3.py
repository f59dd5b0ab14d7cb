"""A whole job whose data is in an object store, run as a user runs it."""

import json
import os
import subprocess
import sys

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from rljob_worker.storage.tests.s3_server import s3_server
from rljob_worker.tests.baselines import write_files
from rljob_worker.tests.comparable import FILES, comparable_job, on_workers
from rljob_worker.tests.jobs import run_job
from rljob_worker.tests.session_root import job_environment


@pytest.fixture
def s3(tiny):
    """The tiny model; its data: Parquet to train on, JSON lines to validate with."""
    with s3_server() as server:
        server.put("runs", b"")
        for file in (tiny / "model").iterdir():
            server.put(f"runs/models/tiny/{file.name}", file.read_bytes())
        server.put("data", b"")
        server.put("data/train/0.parquet", (tiny / "train.parquet").read_bytes())
        rows = pq.read_table(tiny / "validation.parquet").to_pylist()
        server.put("data/validation.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
        yield server


def stored_job(tiny, num_steps, **spec):
    """Nothing of it is on this machine but its metrics."""
    fields = {
        "models": [{"name": "actor", "path": "s3://runs/models/tiny"}],
        "data": {
            "train": [{"path": "s3://data/train/*.parquet", "name": "tiny"}],
            "validation": [{"path": "s3://data/validation.jsonl", "name": "tiny"}],
            "promptColumn": "question",
            "batchSize": 4,
        },
        "storage": {"objectStore": {"uri": "s3://runs/team"}},
    }
    return comparable_job(tiny, on_workers(1), num_steps, **fields | spec)


def run_stored(folder, job, environment):
    folder.mkdir(exist_ok=True)
    write_files(folder, FILES)
    return run_job(job, folder, **environment)


def rewards_of(*runs):
    """By step."""
    return {step["step"]: step["reward/mean"] for run in runs for step in run.metrics if "reward/mean" in step}


@pytest.mark.slow
def test_a_job_lives_in_a_store_and_goes_on_from_another_machine(tiny, tmp_path, s3, one_worker):
    environment = job_environment(**s3.environment)
    first = run_stored(tmp_path / "one", stored_job(tiny, 1), environment)
    assert first.code == 0, first.output + first.logs
    assert not (first.directory / "checkpoints").exists()
    rest = run_stored(tmp_path / "two", stored_job(tiny, 2), environment)
    assert rest.code == 0, rest.output + rest.logs
    assert "going on from the checkpoint of step 1" in rest.output
    on_disk = rewards_of(one_worker)
    assert rewards_of(first, rest) == {step: pytest.approx(on_disk[step], rel=1e-9) for step in (1, 2)}

    command = [sys.executable, "-m", "rljob_worker.cli", "export", "s3://runs/team/test", "out"]
    exported = subprocess.run(command, cwd=tmp_path, env={**os.environ, **s3.environment}, capture_output=True)
    assert exported.returncode == 0, exported.stderr
    trained, base = (load_file(folder / "model.safetensors") for folder in (tmp_path / "out", tiny / "model"))
    assert any(not torch.equal(trained[name], base[name]) for name in trained)


@pytest.mark.slow
def test_a_run_in_a_store_is_built_upon_and_refuses_to_go_on_with_other_data(tiny, tmp_path, s3):
    environment = job_environment(**s3.environment)
    first = run_stored(tmp_path, stored_job(tiny, 1), environment)
    assert first.code == 0, first.output + first.logs
    heir = stored_job(tiny, 1, checkpoint={"everySteps": 1, "initFrom": "s3://runs/team/test"})
    heir["metadata"]["name"] = "heir"
    born = run_stored(tmp_path, heir, environment)
    assert born.code == 0, born.output + born.logs

    s3.put("data/train/1.parquet", (tiny / "validation.parquet").read_bytes())
    again = run_stored(tmp_path, stored_job(tiny, 4), environment)
    assert again.code == 65
    assert "since the checkpoint was written: s3://data/train/1.parquet is new" in again.output


@pytest.mark.slow
def test_a_store_that_lacks_conditional_puts_or_refuses_ends_a_job_that_can_never_run(tiny, tmp_path, s3):
    s3.lose_conditions()
    unfit = run_stored(tmp_path, stored_job(tiny, 2), s3.environment)
    assert unfit.code == 64
    assert "spec.storage.objectStore: the store of s3://runs/team/test takes a put on a condition" in unfit.output
    s3.require_credentials()
    unstored = stored_job(tiny, 2)
    del unstored["spec"]["storage"]
    refused = run_stored(tmp_path, unstored, s3.environment)
    assert refused.code == 64
    assert "the store refuses: 403 Forbidden (InvalidAccessKeyId" in refused.output
