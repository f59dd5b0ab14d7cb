"""A whole job whose data is in an object store, run as a user runs it."""

import json

import pyarrow.parquet as pq
import pytest

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
