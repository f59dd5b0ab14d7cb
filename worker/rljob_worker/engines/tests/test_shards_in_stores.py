"""Sharded state in a bucket, on a real S3 server: what is written is read back, each shard in one request."""

import pytest
import torch

from rljob_worker.engines.fsdp.checkpoint import sharded
from rljob_worker.engines.fsdp.checkpoint.shard_index import merge_indexes
from rljob_worker.engines.fsdp.tensors.parts import Parts
from rljob_worker.storage.paths import storage_path
from rljob_worker.storage.tests.s3_server import s3_bucket

ALONE = Parts(0, None, None, None, None, None)


@pytest.fixture
def s3(monkeypatch):
    with s3_bucket("runs", monkeypatch) as server:
        yield server


def test_a_state_is_read_back_as_it_was_written(s3):
    folder = storage_path("s3://runs/engines/train-actor")
    written = {
        "model": {"weight": torch.randn(64, 33), "bias": torch.randn(33, dtype=torch.bfloat16)},
        "optimizer": {"num_steps": torch.tensor(7)},
    }
    sharded.CopiedShards.of(written, ALONE).write(folder)
    merge_indexes(folder)

    read = {kind: {name: torch.zeros_like(tensor) for name, tensor in item.items()} for kind, item in written.items()}
    s3.asked.clear()
    sharded.read(read, folder)

    for kind, tensors in written.items():
        for name, tensor in tensors.items():
            assert torch.equal(read[kind][name], tensor), name
    shards = [request for request in s3.asked if request.startswith("GET") and ".distcp" in request]
    assert len(shards) == 3
