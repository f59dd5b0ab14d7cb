"""Broadcast edges over a tree of hosts, with real sockets."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from rljob_api.pipeline.meshes import Mesh
from rljob_api.planning.plan import Plan
from rljob_worker.batch import Batch, Column
from rljob_worker.databuffer import broadcast
from rljob_worker.databuffer.faults import OutOfOrder
from rljob_worker.databuffer.tests.gang import Gang, as_processes, group, in_process, plan_of, stage
from rljob_worker.errors import DeadlineExceeded, PeerLost

EDGE = "weights/actor"


def weights_plan(**options) -> Plan:
    """One training host sends to four generating hosts of two workers: a tree of three levels with fan-out 2."""
    return plan_of(
        [group("rollout", 4, 2, ["a"]), group("train", 1, 2, ["b"])],
        [stage("a", "rollout", Mesh(dp=8)), stage("b", "train", Mesh(dp=2))],
        {"a->b": ["ids"]},
        weights=("train", "rollout"),
        **options,
    )


def chunk(index: int, num_values: int = 1000) -> Batch:
    values = np.arange(num_values, dtype=np.uint16) + index
    return Batch.build([index], [index], {"data": Column.ragged([values], "bfloat16")})


def read(gang: Gang, rank: int, version: int) -> list[int]:
    """First value of every chunk of a version; each must be whole."""
    found = []
    for received in gang.client("rollout", rank).receive(version, EDGE):
        first = int(received["data"].values[0])
        assert received["data"].dtype == "bfloat16"
        assert np.array_equal(received["data"].values, chunk(first)["data"].values)
        found.append(first)
    return found


def test_every_rank_gets_all_chunks_in_order_through_a_window_smaller_than_the_version(tmp_path: Path):
    with in_process(weights_plan(), tmp_path) as gang, ThreadPoolExecutor(9) as pool:
        for version in (1, 2):
            source = gang.client("train", 0)
            sent = pool.submit(source.send, version, EDGE, (chunk(i) for i in range(30)))
            readers = [pool.submit(read, gang, rank, version) for rank in range(8)]
            assert [reader.result() for reader in readers] == [list(range(30))] * 8
            sent.result()
            source.drain(5.0)


def test_a_version_that_is_not_newer_is_refused_by_name(tmp_path: Path):
    with in_process(weights_plan(), tmp_path) as gang:
        source = gang.client("train", 0)
        source.send(5, EDGE, [chunk(0)])
        with pytest.raises(OutOfOrder, match="version 4 of weights/actor after version 5"):
            source.send(4, EDGE, [chunk(0)])
        with pytest.raises(OutOfOrder, match="version 3 of weights/actor is over: version 5 is here"):
            assert read(gang, 0, 5) == [0]
            read(gang, 0, 3)


def test_a_slow_reader_holds_the_source_back_and_is_named(tmp_path: Path):
    with (
        in_process(weights_plan(), tmp_path) as gang,
        pytest.raises(DeadlineExceeded, match="no room for chunk .* not yet read by host rollout-0, host rollout-1"),
    ):
        gang.client("train", 0).send(1, EDGE, (chunk(i) for i in range(100)), deadline_seconds=0.2)


def test_a_damaged_chunk_is_found_by_its_checksum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    plan = weights_plan()
    with in_process(plan, tmp_path) as gang:
        source = gang.client("train", 0)
        # the source stamps a wrong sum, as if a bit had flipped on the way
        monkeypatch.setattr("rljob_worker.databuffer.client.checksum_of", lambda data: broadcast.checksum_of(data) ^ 1)
        source.send(1, EDGE, [chunk(0)])
        with pytest.raises(PeerLost, match="chunk 0 of edge weights/actor, step 1 came damaged from host train-0"):
            read(gang, 0, 1)
        with pytest.raises(PeerLost, match="came damaged from host train-0"):
            read(gang, 7, 1)  # two hosts further down the tree


def test_a_dead_parent_is_found_by_those_who_wait_for_it(tmp_path: Path):
    with as_processes(weights_plan(), tmp_path) as gang:
        reader = gang.client("rollout", 0)
        gang.processes["train-0"].kill()
        gang.processes["train-0"].wait()
        with pytest.raises(PeerLost, match="the data buffer of host train-0 does not answer"):
            next(reader.receive(1, EDGE, deadline_seconds=60))


def test_whoever_waits_for_weights_hears_what_the_source_does(tmp_path: Path):
    with in_process(weights_plan(), tmp_path) as gang:
        gang.client("train", 0).post({"stage": "update", "step": 7})
        with pytest.raises(DeadlineExceeded, match=r"rank 0 of group train \(host train-0\).*'stage': 'update'"):
            next(gang.client("rollout", 3).receive(1, EDGE, deadline_seconds=0.1))


def test_the_verdict_reaches_everyone_but_the_lead(tmp_path: Path):
    with in_process(weights_plan(), tmp_path) as gang:
        for version in range(3):
            message = Batch.build([0], [0], {"json": Column.strings([f"verdict {version}"])})
            gang.client("train", 0).put(version, "verdict", message)
            for name, rank in [("train", 1), *[("rollout", rank) for rank in range(8)]]:
                assert gang.client(name, rank).get(version, "verdict")["json"].row(0) == f"verdict {version}"


def test_metrics_of_every_worker_reach_the_lead(tmp_path: Path):
    with in_process(weights_plan(), tmp_path) as gang:
        for ordinal, (name, rank) in enumerate([("rollout", r) for r in range(8)] + [("train", 0), ("train", 1)]):
            row = Batch.build([ordinal], [ordinal], {"json": Column.strings([f"{name} {rank}"])})
            gang.client(name, rank).put(1, "metrics", row)
        got = gang.client("train", 0).get(1, "metrics")
        assert got["json"].to_list() == [f"rollout {r}" for r in range(8)] + ["train 0", "train 1"]
