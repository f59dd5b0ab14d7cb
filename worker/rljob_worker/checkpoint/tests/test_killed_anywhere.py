"""A checkpoint is killed before each of the things it does to the disk; the one before it stays whole."""

import os
import signal
import sys

from torch.distributed.checkpoint.metadata import Metadata

from rljob_worker.checkpoint.manifest import committed, damage
from rljob_worker.checkpoint.restore import choose_start, discard_after
from rljob_worker.checkpoint.tests.builders import committer
from rljob_worker.checkpoint.writer import RankFiles, RankPart
from rljob_worker.engines.fsdp.checkpoint.shard_index import ShardWriter
from rljob_worker.rundir.ownership import Owner, claim_run

OWNER = Owner(1)
RANKS = (("train", 0), ("train", 1))
CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir"}


class Shards:
    """Two files of one rank, and its index."""

    def __init__(self, rank):
        self.rank = rank

    def copy_shards(self):
        return self

    def write(self, directory):
        directory.mkdir(parents=True, exist_ok=True)
        for number in range(2):
            (directory / f"__{self.rank}_{number}.distcp").write_bytes(b"weights")
        writer = ShardWriter(directory, self.rank)
        writer.set_up_storage_writer(is_coordinator=True)
        writer.finish(Metadata({}, planner_data={}), [[]])


def write_and_commit(run_dir, step):
    for group, rank in RANKS:
        part = RankPart.copy({"train/actor": Shards(rank)}, {"step": step})
        RankFiles(run_dir, OWNER, group, rank).write(step, part)
    committer(run_dir, OWNER, RANKS).commit(step, score=None)


def killed_at(number, run_dir, step):
    """Fork; the child writes and commits `step`, but dies instead of making its change of that number. Whether it
    died."""
    child = os.fork()
    if child == 0:
        made = 0

        def count(event, arguments):
            nonlocal made
            writes = event == "open" and str(run_dir) in str(arguments[0]) and arguments[1] not in ("r", "rb", None)
            if writes or event in CHANGES:
                made += 1
                if made == number:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        try:
            write_and_commit(run_dir, step)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def test_whenever_it_is_killed_the_checkpoint_before_is_there_and_the_next_attempt_goes_on(tmp_path):
    number, starts = 0, []
    died = True
    while died:
        number += 1
        run_dir = tmp_path / str(number)
        run_dir.mkdir()
        claim_run(run_dir, OWNER)
        write_and_commit(run_dir, 2)
        died = killed_at(number, run_dir, 4)
        result = committed(run_dir / "checkpoints")
        assert [damage(item) for item in result] == [None] * len(result)
        starts.append(choose_start(run_dir / "checkpoints", "auto").step)
        discard_after(run_dir / "checkpoints", starts[-1])
        assert [item.step for item in committed(run_dir / "checkpoints")] == [2, 4][: starts[-1] // 2]
    # 3 directories; 4 shards; 2 indexes, a state and 2 done files, written and renamed; the one index, written and
    # renamed, and 2 that are removed; the manifest, written and renamed: only that makes it a checkpoint
    assert len(starts) > 3 + 4 + 10 + 4 + 2 and starts == [2] * (len(starts) - 1) + [4]
