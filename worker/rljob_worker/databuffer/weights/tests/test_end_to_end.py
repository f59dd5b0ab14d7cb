"""Weights between data buffers on real sockets, and between processes."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from rljob_api.pipeline.meshes import Mesh
from rljob_api.planning.plan import Plan
from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.databuffer.protocol.errors import OutOfOrder
from rljob_worker.databuffer.rows.byte_stream import chunk_checksum
from rljob_worker.databuffer.tests.gang import Gang, as_processes, group, in_process, plan_of, stage
from rljob_worker.databuffer.tests.test_rows import resident_bytes
from rljob_worker.databuffer.weights import client as weights_client
from rljob_worker.errors import DeadlineExceeded, PeerLost
from rljob_worker.tests.waiting import wait_for

EDGE = "weights/actor"


def weights_plan(train: tuple[int, int] = (2, 2), rollout: tuple[int, int] = (4, 2), **options) -> Plan:
    """Each (hosts, workers per host). By default four sources, and trees of three levels below their roots."""
    return plan_of(
        [group("rollout", *rollout, ["a"]), group("train", *train, ["b"])],
        [stage("a", "rollout", Mesh(dp=rollout[0] * rollout[1])), stage("b", "train", Mesh(dp=train[0] * train[1]))],
        {"a->b": ["ids"]},
        weights=("train", "rollout"),
        **options,
    )


def chunk(source: int, version: int, index: int) -> np.ndarray:
    return np.random.default_rng([source, version, index]).integers(0, 256, 1000 + index, dtype=np.uint8)


def send(gang: Gang, rank: int, version: int, num_chunks: int) -> None:
    """The version before is released."""
    client = gang.client("train", rank)
    client.release_version(version - 1, EDGE)
    with client.sending(version, EDGE) as stream:
        for index in range(num_chunks):
            data = chunk(rank, version, index)
            stream.reserve(len(data))[:] = data
            stream.seal(f"{rank} {index}".encode())


def read(gang: Gang, rank: int, version: int) -> list[tuple[int, int]]:
    """(source, index) of every chunk of a version, ascending; each must be whole."""
    result = []
    for received in gang.client("rollout", rank).receive(version, EDGE):
        assert received.table == f"{received.source} {received.index}".encode()
        assert np.array_equal(received.data, chunk(received.source, version, received.index))
        result.append((received.source, received.index))
    return sorted(result)


def test_every_rank_gets_all_chunks_of_all_sources_through_fewer_slots_than_chunks(tmp_path: Path):
    expected = [(source, index) for source in range(4) for index in range(10)]
    with in_process(weights_plan(), tmp_path) as gang, ThreadPoolExecutor(12) as pool:
        for version in (1, 2):
            senders = [pool.submit(send, gang, rank, version, 10) for rank in range(4)]
            readers = [pool.submit(read, gang, rank, version) for rank in range(8)]
            assert [reader.result() for reader in readers] == [expected] * 8
            for sender in senders:
                sender.result()
        gang.client("train", 0).drain(5.0)


def test_slots_that_are_not_free_count_as_resident_until_they_are_read(tmp_path: Path):
    with in_process(weights_plan((1, 1), (1, 1)), tmp_path) as gang:
        send(gang, 0, 1, 2)
        # one source: four slots in half of the 4 MiB of the arena
        assert wait_for(lambda: resident_bytes(gang, "rollout-0", of="weights") == 2 * (512 << 10))
        assert resident_bytes(gang, "rollout-0") == 0
        assert read(gang, 0, 1) == [(0, 0), (0, 1)]
        assert wait_for(lambda: resident_bytes(gang, "rollout-0", of="weights") == 0)


def test_a_version_that_is_not_newer_is_refused_by_name(tmp_path: Path):
    with in_process(weights_plan((1, 1), (1, 1)), tmp_path) as gang:
        send(gang, 0, 5, 1)
        with pytest.raises(OutOfOrder, match="version 4 of weights/actor after version 5: versions only grow"):
            send(gang, 0, 4, 1)
        assert read(gang, 0, 5) == [(0, 0)]
        with pytest.raises(OutOfOrder, match="version 5 of weights/actor is over: rank 0 can have version 6 next"):
            read(gang, 0, 5)


def test_a_version_that_its_source_left_out_never_comes(tmp_path: Path):
    with in_process(weights_plan((1, 1), (2, 1)), tmp_path) as gang:
        send(gang, 0, 5, 1)
        assert read(gang, 0, 5) == [(0, 0)]
        with pytest.raises(
            OutOfOrder,
            match="nobody holds version 3 of weights/actor any more: version 5 is held by source 0 on host train-0",
        ):
            read(gang, 1, 3)


def test_a_slow_reader_holds_its_sources_back_and_is_named(tmp_path: Path):
    with (
        in_process(weights_plan((1, 2), (3, 1), deadline_seconds=3), tmp_path) as gang,
        pytest.raises(
            DeadlineExceeded,
            match="waited .* for a slot of weights/actor, version 1: chunk 4 of source 0 .*"
            "not yet read by host rollout-0",
        ),
    ):
        send(gang, 0, 1, 100)


def test_a_version_is_read_while_a_slow_reader_holds_the_one_before(tmp_path: Path):
    with in_process(weights_plan((1, 1), (2, 1)), tmp_path) as gang:
        slow = gang.client("rollout", 0).receive(1, EDGE)
        send(gang, 0, 1, 1)
        held = next(slow)
        send(gang, 0, 2, 2)
        assert read(gang, 1, 1) == [(0, 0)] and read(gang, 1, 2) == [(0, 0), (0, 1)]
        assert np.array_equal(held.data, chunk(0, 1, 0))
        assert list(slow) == [] and read(gang, 0, 2) == [(0, 0), (0, 1)]


def test_who_stops_reading_skips_the_rest_of_the_version(tmp_path: Path):
    with in_process(weights_plan((1, 1), (1, 1)), tmp_path) as gang, ThreadPoolExecutor(1) as pool:
        sent = pool.submit(send, gang, 0, 1, 30)
        for _ in gang.client("rollout", 0).receive(1, EDGE):
            break
        sent.result()  # 29 chunks that nobody wants went through four slots
        send(gang, 0, 2, 1)
        assert read(gang, 0, 2) == [(0, 0)]


def test_a_damaged_chunk_is_found_by_its_checksum_and_everybody_hears_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with in_process(weights_plan((1, 1), (4, 1)), tmp_path) as gang:
        # the source stamps a wrong sum, as if a bit had flipped on the way
        monkeypatch.setattr(weights_client, "chunk_checksum", lambda data, table: chunk_checksum(data, table) ^ 1)
        data = np.frombuffer(b"0123", np.uint8)
        with gang.client("train", 0).sending(1, EDGE) as stream:
            stream.reserve(4)[:] = data
            stream.seal(b"")
        right = chunk_checksum(data, b"")
        words = f"came damaged from host train-0 3 times: checksum {right:016x}, expected {right ^ 1:016x}"
        for rank in (0, 3):  # next to the source, and further down the tree
            with pytest.raises(PeerLost, match=f"chunk 0 of source 0 of weights/actor, version 1.* {words}"):
                read(gang, rank, 1)


def test_a_dead_source_is_found_by_those_who_wait_for_it(tmp_path: Path):
    with as_processes(weights_plan((1, 1), (2, 1), deadline_seconds=TEST_TIMEOUT_SECONDS), tmp_path) as gang:
        reader = gang.client("rollout", 1)
        gang.processes["train-0"].kill()
        gang.processes["train-0"].wait()
        with pytest.raises(PeerLost, match="the data buffer of host train-0 does not answer"):
            next(reader.receive(1, EDGE))


def test_whoever_waits_for_weights_hears_what_the_late_sources_do(tmp_path: Path):
    with in_process(weights_plan((1, 2), (2, 1), deadline_seconds=0.3), tmp_path) as gang:
        gang.client("train", 1).set_status({"stage": "update", "step": 7})
        send(gang, 0, 1, 0)
        late = (
            r"rank 0 of group rollout \(host rollout-0\) waited .* for weights/actor, version 1: 1 of 2 sources have "
            r"not sent all of it; rank 1 of group train \(host train-0\) last said \d+ s ago: stage update, step 7"
        )
        with pytest.raises(DeadlineExceeded, match=late):
            next(gang.client("rollout", 0).receive(1, EDGE))
