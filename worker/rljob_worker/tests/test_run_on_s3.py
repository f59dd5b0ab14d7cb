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
from rljob_worker.tests.jobs import CPU, make_job, run_job

ONE_WORKER = [{"name": "train", "accelerator": CPU}]


@pytest.fixture
def s3(tiny):
    """The tiny data: Parquet to train on, JSON lines to validate with."""
    with s3_server() as server:
        server.put("data", b"")
        server.put("data/train/0.parquet", (tiny / "train.parquet").read_bytes())
        rows = pq.read_table(tiny / "validation.parquet").to_pylist()
        server.put("data/validation.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
        yield server


def job_on_s3(tiny, **spec):
    data = {
        "train": [{"path": "s3://data/train/*.parquet", "name": "tiny"}],
        "validation": [{"path": "s3://data/validation.jsonl", "name": "tiny"}],
        "promptColumn": "question",
        "batchSize": 4,
    }
    return make_job(tiny, data=data, workerGroups=ONE_WORKER, **spec)


def test_a_job_trains_on_a_store_as_on_a_disk_and_refuses_to_go_on_with_other_data(tiny, tmp_path, s3):
    first = run_job(job_on_s3(tiny), tmp_path / "s3", **s3.environment)
    assert first.code == 0, first.output + first.logs
    on_disk = run_job(make_job(tiny, workerGroups=ONE_WORKER), tmp_path / "disk")
    rewards = [row["reward/mean"] for row in on_disk.metrics if "reward/mean" in row]
    assert [row["reward/mean"] for row in first.metrics if "reward/mean" in row] == rewards and len(rewards) == 2
    s3.put("data/train/1.parquet", (tiny / "validation.parquet").read_bytes())
    again = run_job(job_on_s3(tiny, stop={"steps": 4}), tmp_path / "s3", **s3.environment)
    assert again.code == 65
    assert "since the checkpoint was written: s3://data/train/1.parquet is new" in again.output


def test_wrong_credentials_end_a_job_that_can_never_run(tiny, tmp_path, s3):
    s3.require_credentials()
    run = run_job(job_on_s3(tiny), tmp_path, **s3.environment)
    assert run.code == 64
    assert "the store refuses: 403 Forbidden (InvalidAccessKeyId" in run.output


def upload_model(s3, tiny):
    s3.put("runs", b"")
    for file in (tiny / "model").iterdir():
        s3.put(f"runs/models/tiny/{file.name}", file.read_bytes())


def stored_job(tiny, name="test", **spec):
    """Nothing of it is on this machine but its metrics."""
    fields = {
        "models": [{"name": "actor", "path": "s3://runs/models/tiny"}],
        "storage": {"objectStore": {"uri": "s3://runs/team"}},
        "checkpoint": {"everySteps": 1},
        "workerGroups": ONE_WORKER,
    }
    job = make_job(tiny, name, **fields | spec)
    del job["spec"]["data"]["validation"], job["spec"]["validation"]
    return job


def test_a_job_lives_in_a_store_and_goes_on_from_another_machine(tiny, tmp_path, s3):
    upload_model(s3, tiny)
    first = run_job(stored_job(tiny, stop={"steps": 1}), tmp_path / "one", **s3.environment)
    assert first.code == 0, first.output + first.logs
    assert not (first.directory / "checkpoints").exists()
    rest = run_job(stored_job(tiny, stop={"steps": 2}), tmp_path / "two", **s3.environment)
    assert rest.code == 0, rest.output + rest.logs
    assert "going on from the checkpoint of step 1" in rest.output

    command = [sys.executable, "-m", "rljob_worker.cli", "export", "s3://runs/team/test", "out"]
    exported = subprocess.run(command, cwd=tmp_path, env={**os.environ, **s3.environment}, capture_output=True)
    assert exported.returncode == 0, exported.stderr
    trained, base = (load_file(folder / "model.safetensors") for folder in (tmp_path / "out", tiny / "model"))
    assert any(not torch.equal(trained[name], base[name]) for name in trained)

    init_from = {"everySteps": 1, "initFrom": "s3://runs/team/test"}
    heir = stored_job(tiny, "heir", checkpoint=init_from, stop={"steps": 1})
    born = run_job(heir, tmp_path / "two", **s3.environment)
    assert born.code == 0, born.output + born.logs


def test_a_store_without_conditional_puts_is_refused_by_name(tiny, tmp_path, s3):
    upload_model(s3, tiny)
    s3.lose_conditions()
    run = run_job(stored_job(tiny), tmp_path, **s3.environment)
    assert run.code == 64
    assert "spec.storage.objectStore: the store of s3://runs/team/test takes a put on a condition" in run.output
