"""An attempt that has lost its run commits at no moment, whenever the next one takes over.

A named pipe stands for the file at whose reading the next attempt comes between: opening it waits for the reader.
"""

import os
import threading
from contextlib import contextmanager

import pytest

from rljob_worker.checkpoint.manifest import MANIFEST, committed, directory_name
from rljob_worker.checkpoint.restore import delete_checkpoint, discard_after
from rljob_worker.checkpoint.tests.builders import committer
from rljob_worker.checkpoint.writer import RankFiles, RankPart, done_name
from rljob_worker.errors import StorageError
from rljob_worker.rundir.ownership import FILE, Owner, claim_run
from rljob_worker.storage.files import write_draft

OLD, NEW = Owner(1), Owner(2)


@contextmanager
def while_read(pipe, work):
    """`work()` once somebody reads `pipe`, who then reads what it returned."""

    def serve():
        with pipe.open("w") as writer:
            writer.write(work())

    os.mkfifo(pipe)
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield
    thread.join()


def test_losing_the_run_while_waiting_for_the_last_rank(tmp_path):
    def take_over():
        claim_run(tmp_path, NEW)
        return "{}"

    claim_run(tmp_path, OLD)
    RankFiles(tmp_path, OLD, "train", 0).write(4, RankPart.copy({}, {}))
    last = tmp_path / "checkpoints" / directory_name(4, OLD) / done_name("train", 1)
    with (
        while_read(last, take_over),
        pytest.raises(StorageError, match="attempt 1 may not commit step 4: the run belongs to attempt 2"),
    ):
        committer(tmp_path, OLD, (("train", 0), ("train", 1))).commit(4, score=None)
    assert committed(tmp_path / "checkpoints") == []


def test_losing_the_run_after_it_was_seen_to_be_ones_own(tmp_path):
    def take_over():
        discard_after(tmp_path / "checkpoints", 0)
        RankFiles(tmp_path, OLD, "train", 0).write(4, RankPart.copy({}, {}))  # a rank that has not heard of it
        return "1"  # what was read before the claim

    RankFiles(tmp_path, OLD, "train", 0).write(4, RankPart.copy({}, {}))
    with while_read(tmp_path / FILE, take_over), pytest.raises(StorageError, match="No such file"):
        committer(tmp_path, OLD).commit(4, score=None)
    assert committed(tmp_path / "checkpoints") == []


def test_a_deletion_cut_short_leaves_nothing_that_can_become_or_look_like_a_checkpoint(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    directory = tmp_path / "step-00000004-attempt-1"
    directory.symlink_to(tmp_path / "elsewhere")  # rmtree leaves a linked directory alone
    (directory / MANIFEST).write_text("{}")
    draft = write_draft(directory / MANIFEST, "{}")
    delete_checkpoint(directory)
    assert list(directory.iterdir()) == []
    with pytest.raises(StorageError, match=f"cannot write {directory / MANIFEST}: No such file"):
        draft.publish()
    delete_checkpoint(directory)  # and again, where there is nothing
