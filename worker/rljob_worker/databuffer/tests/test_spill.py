"""Rows that go to disk, with data buffers as in a job."""

import os
import signal
import urllib.request
from pathlib import Path

import pytest

from rljob_api.planning.plan import Plan
from rljob_worker.batch import Batch
from rljob_worker.databuffer.rows.tests.batches import same
from rljob_worker.databuffer.store.segment_files import ARENA, SPILL
from rljob_worker.databuffer.tests.gang import Gang, in_process, rows, two_stages
from rljob_worker.databuffer.tests.warm import BufferProcess, warm_processes
from rljob_worker.errors import DeadlineExceeded
from rljob_worker.tests.warm import run_warm

EDGE = "a->b"
PART, SHARE = 1_204_224, 602_112
"""A part of two rows of 75,000 values of 8 bytes and of its share, index and offsets included, in whole pages."""


def small_memory(limit: str = "3Mi", **spill: str) -> Plan:
    """1 Mi of memory holds no part, 3 Mi of disk hold two; of the consumers' two shares the memory holds one."""
    return two_stages(
        (1, 1), (1, 2), batch_size=2, group_size=1, memory="1Mi", spill={"limit": limit, **spill}, columns=["ids"]
    )


def part(step: int) -> Batch:
    row_ids = [2 * step - 2, 2 * step - 1]
    return rows(row_ids, 1, dict.fromkeys(row_ids, 75_000)).select(["ids"])


RESIDENT = 'rljob_buffer_resident_bytes{of="rows"}'


def metrics(gang: Gang, host: str) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{gang.ready[host]['metrics_port']}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def test_rows_are_written_on_disk_streamed_from_there_and_mapped_there(tmp_path: Path):
    with in_process(small_memory(), tmp_path) as gang:
        producer, consumers = gang.client("rollout", 0), [gang.client("train", rank) for rank in range(2)]
        for step in (1, 2):
            producer.put(step, EDGE, part(step))
        made = metrics(gang, "rollout-0")
        assert (
            made["rljob_buffer_spill_used_bytes"] == made['rljob_buffer_spilled_bytes_total{edge="a->b"}'] == 2 * PART
        )
        assert made["rljob_buffer_spill_limit_bytes"] == 3 << 20 and made[RESIDENT] == 0
        for step in (1, 2):
            got = [consumer.get(step, EDGE) for consumer in consumers]
            used = metrics(gang, "train-0")
            assert used[RESIDENT] == used["rljob_buffer_spill_used_bytes"] == SHARE
            assert same(Batch.concat(got), part(step))
            for consumer, batch in zip(consumers, got, strict=True):
                consumer.release(batch)
        producer.drain(5.0)
        assert metrics(gang, "rollout-0")["rljob_buffer_spill_used_bytes"] == 0
    assert not list(tmp_path.glob(f"{SPILL.prefix}*"))


def test_a_full_spill_file_blocks_a_put_until_there_is_room(tmp_path: Path):
    with in_process(small_memory("2Mi"), tmp_path) as gang:
        producer = gang.client("rollout", 0)
        producer.put(1, EDGE, part(1))
        with pytest.raises(DeadlineExceeded, match=r"in memory and .* on disk after .* raise dataBuffer\.spill\.limit"):
            producer.put(2, EDGE, part(2), deadline_seconds=0.1)
        for rank in range(2):
            consumer = gang.client("train", rank)
            consumer.release(consumer.get(1, EDGE))
        producer.put(2, EDGE, part(2))


def test_what_a_killed_data_buffer_left_on_disk_is_removed_and_a_neighbours_is_kept(tmp_path: Path):
    disk = tmp_path / "disk"
    disk.mkdir()
    with warm_processes(small_memory(directory=str(disk)), tmp_path) as gang:
        before = set(disk.iterdir())
        assert len(before) == 2 and all(path.stat().st_blocks * 512 >= 3 << 20 for path in before)
        gang.processes["rollout-0"].kill()
        gang.processes["rollout-0"].wait()
        again = gang.processes["again"] = BufferProcess(gang, "rollout", 0)
        assert again.stdout.readline()
        after = set(disk.iterdir())
        assert len(after) == 2 and len(before & after) == 1
        for process in gang.processes.values():
            process.send_signal(signal.SIGHUP)
            process.wait()
        assert list(disk.iterdir()) == []


@pytest.mark.parametrize(
    ("limit", "directory", "words"),
    [
        ("1Mi", "absent", "absent: No such file or directory; dataBuffer.spill needs a directory on local disk"),
        ("64Ti", ".", "cannot reserve 70,368,744,177,664 bytes for its spill file"),
    ],
)
def test_a_disk_that_cannot_be_had_is_exit_74_and_leaves_no_arena(tmp_path: Path, limit, directory, words):
    gang = Gang(small_memory(limit, directory=str(tmp_path / directory)), tmp_path)
    gang.write_files()
    ended = run_warm("rljob_worker.databuffer", environment={**os.environ, **gang.environment("rollout", 0)})
    assert ended.returncode == 74 and words in ended.stderr
    assert not [*tmp_path.glob(f"{ARENA.prefix}*"), *tmp_path.glob(f"{SPILL.prefix}*")]
