"""Manifests: which checkpoints are whole, and which are damaged."""

import json
import threading
import zlib
from pathlib import Path

import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.checkpoint.manifest import (
    MANIFEST,
    Committed,
    Manifest,
    committed,
    damage,
    directory_name,
    file_entry,
    to_delete,
)
from rljob_worker.checkpoint.restore import ResumePoint, choose_start, discard_after
from rljob_worker.checkpoint.writer import Committer, RankFiles, RankPart, storage_reason
from rljob_worker.errors import DeadlineExceeded, InvalidJob, StorageError
from rljob_worker.rundir.ownership import Owner, claim_run


class FakeEngine:
    """Writes one shard file, as torch.distributed.checkpoint would."""

    def __init__(self, rank, content=b"weights"):
        self.rank, self.content = rank, content

    def copy_shards(self):
        return self

    def write(self, directory):
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"__{self.rank}_0.distcp").write_bytes(self.content)


def committer(run_dir, attempt=1, ranks=(("train", 0),), deadline_seconds=TEST_TIMEOUT_SECONDS, **options):
    options = {"keep_last": 2, "keep_best": 0, **options}
    return Committer(run_dir, Owner(attempt), "plan", ranks, deadline_seconds=deadline_seconds, **options)


def write(run_dir, step, attempt=1, score=None, **options):
    claim_run(run_dir, Owner(attempt))
    RankFiles(run_dir, Owner(attempt), "train", 0).write(
        step, RankPart.copy({"train/actor": FakeEngine(0)}, {"stages": {}})
    )
    return committer(run_dir, attempt, **options).commit(step, score=score)


def test_what_is_committed_is_found_and_whole(tmp_path, caplog):
    path = write(tmp_path, 4, score=0.5)
    (result,) = committed(tmp_path / "checkpoints")
    assert (result.path, result.step, result.manifest.score) == (path, 4, 0.5)
    assert set(result.manifest.files) == {"engines/train-actor/__0_0.distcp", "state-train.json", "done-train-0.json"}
    assert damage(result) is None
    assert choose_start(tmp_path / "checkpoints", "auto") == ResumePoint(4, path)
    assert caplog.text == ""


def test_a_manifest_is_json_with_size_and_checksum_of_every_file(tmp_path):
    written = json.loads((write(tmp_path, 4, attempt=3, score=0.5) / MANIFEST).read_text())
    assert written.pop("files")["engines/train-actor/__0_0.distcp"] == [7, zlib.crc32(b"weights")]
    assert written == {"schemaVersion": 1, "step": 4, "attempt": 3, "planHash": "plan", "score": 0.5}


def test_a_shard_that_changes_between_its_writer_and_the_commit_is_damaged(tmp_path):
    claim_run(tmp_path, Owner(1))
    RankFiles(tmp_path, Owner(1), "train", 0).write(4, RankPart.copy({"train/actor": FakeEngine(0)}, {}))
    shard = tmp_path / "checkpoints" / directory_name(4, Owner(1)) / "engines/train-actor/__0_0.distcp"
    shard.write_bytes(b"weightz")
    committer(tmp_path).commit(4, score=None)
    assert damage(committed(tmp_path / "checkpoints")[0]) == f"{shard} does not match its checksum"


def test_a_directory_without_a_manifest_is_no_checkpoint(tmp_path):
    write(tmp_path, 4)
    torn = write(tmp_path, 8)
    (torn / MANIFEST).unlink()
    assert choose_start(tmp_path / "checkpoints", "auto").step == 4


def test_a_torn_manifest_is_none(tmp_path):
    write(tmp_path, 4)
    torn = write(tmp_path, 8)
    (torn / MANIFEST).write_text((torn / MANIFEST).read_text()[:40])
    assert choose_start(tmp_path / "checkpoints", "auto").step == 4


def changed(text, **fields):
    return json.dumps({name: value for name, value in (json.loads(text) | fields).items() if value != "LEFT OUT"})


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: "",
        lambda text: "null",
        lambda text: "[4, 1]",
        lambda text: changed(text, step="LEFT OUT"),
        lambda text: changed(text, step="4"),
        lambda text: changed(text, files=["state-train.json"]),
        lambda text: changed(text, files={"state-train.json": 17}),
        lambda text: changed(text, files={"state-train.json": [17]}),
        lambda text: changed(text, schemaVersion=0),
    ],
)
def test_a_manifest_of_another_shape_makes_no_checkpoint(tmp_path, spoil):
    path = write(tmp_path, 8)
    manifest = path / MANIFEST
    assert choose_start(tmp_path / "checkpoints", "auto") == ResumePoint(8, path)
    manifest.write_text(spoil(manifest.read_text()))
    assert choose_start(tmp_path / "checkpoints", "auto") == ResumePoint()


@pytest.mark.parametrize("content", [{"schemaVersion": 2}, {"schemaVersion": 2, "step": "of another type"}])
def test_a_checkpoint_of_a_newer_rljob_is_refused_by_name_and_kept(tmp_path, content):
    path = write(tmp_path, 8)
    (path / MANIFEST).write_text(json.dumps(content))
    words = f"a newer rljob wrote checkpoint {path}: its manifest has schemaVersion 2, and this rljob reads 1"
    for use in (lambda: choose_start(path.parent, "auto"), lambda: discard_after(path.parent, 0)):
        with pytest.raises(InvalidJob, match=words):
            use()
    assert (path / MANIFEST).exists()


def test_a_checksum_is_of_every_byte_of_a_file_however_large(tmp_path):
    content = bytearray(10_000_001)  # read in pieces
    path = tmp_path / "shard"
    for at in (0, 5_000_000, 10_000_000):
        content[at] = 1
        path.write_bytes(content)
        assert file_entry(path) == (10_000_001, zlib.crc32(content))


def test_a_file_that_is_4_gib_longer_is_damaged_and_not_read(tmp_path):
    path = write(tmp_path, 4)
    with (path / "engines/train-actor/__0_0.distcp").open("r+b") as file:
        file.truncate((1 << 32) + 7)  # sparse; what is missing are zeros
    (result,) = committed(tmp_path / "checkpoints")
    assert "__0_0.distcp has 4294967303 bytes, its manifest says 7" in damage(result)


@pytest.mark.parametrize("content, words", [(b"weightz", "checksum"), (b"weigh", "5 bytes, its manifest says 7")])
def test_a_damaged_checkpoint_is_passed_over_but_never_forgotten(tmp_path, caplog, content, words):
    good, bad = write(tmp_path, 4), write(tmp_path, 8)
    (bad / "engines/train-actor/__0_0.distcp").write_bytes(content)
    assert choose_start(tmp_path / "checkpoints", "auto") == ResumePoint(4, good)
    assert words in caplog.text and "going on from the checkpoint of step 4 instead" in caplog.text
    with pytest.raises(StorageError, match="step 8 is damaged"):
        choose_start(tmp_path / "checkpoints", "8")
    (good / "engines/train-actor/__0_0.distcp").unlink()
    with pytest.raises(StorageError, match="no good checkpoint is left"):
        choose_start(tmp_path / "checkpoints", "auto")


def test_a_step_can_be_asked_for_and_one_that_is_not_there_names_those_that_are(tmp_path):
    checkpoints = tmp_path / "checkpoints"
    with pytest.raises(StorageError, match="no checkpoint of step 5 .* there are: none"):
        choose_start(checkpoints, "5")
    older, _ = write(tmp_path, 4), write(tmp_path, 8)
    assert choose_start(checkpoints, "4") == ResumePoint(4, older)
    with pytest.raises(StorageError, match="no checkpoint of step 5 .* there are: 4, 8"):
        choose_start(checkpoints, "5")


def test_without_a_checkpoint_or_never_resuming_a_run_starts_at_step_0(tmp_path):
    write(tmp_path, 4)
    assert choose_start(tmp_path / "checkpoints", "never") == ResumePoint(0, None)
    assert choose_start(tmp_path / "nothing", "auto") == ResumePoint(0, None)


def test_the_newest_attempt_of_a_step_counts(tmp_path):
    write(tmp_path, 4, attempt=2)
    newest = write(tmp_path, 4, attempt=10)
    assert [c.path for c in committed(tmp_path / "checkpoints")] == [newest]


def test_an_old_attempt_cannot_commit(tmp_path):
    claim_run(tmp_path, Owner(1))
    RankFiles(tmp_path, Owner(1), "train", 0).write(4, RankPart.copy({}, {}))
    claim_run(tmp_path, Owner(2))
    with pytest.raises(StorageError, match="attempt 1 may not commit step 4: the run belongs to attempt 2"):
        committer(tmp_path, 1).commit(4, score=None)
    assert committed(tmp_path / "checkpoints") == []
    with pytest.raises(StorageError, match="belongs to attempt 2 already"):
        claim_run(tmp_path, Owner(1))


def test_the_commit_waits_for_every_rank_and_names_the_late_ones(tmp_path):
    def save(group, rank):
        RankFiles(tmp_path, Owner(1), group, rank).write(4, RankPart.copy({"train/actor": FakeEngine(rank)}, {}))

    claim_run(tmp_path, Owner(1))
    ranks = (("train", 0), ("train", 1), ("rollout", 0))
    save("train", 0)
    with pytest.raises(DeadlineExceeded, match="no done file from worker rollout/0, train/1"):
        committer(tmp_path, ranks=ranks, deadline_seconds=0.05).commit(4, score=None)
    save("rollout", 0)
    late = threading.Thread(target=save, args=("train", 1))
    late.start()
    path = committer(tmp_path, ranks=ranks).commit(4, score=None)
    late.join()
    shards = {f"engines/train-actor/__{rank}_0.distcp" for rank in (0, 1)}
    assert shards < set(json.loads((path / MANIFEST).read_text())["files"])


def test_a_full_disk_leaves_the_previous_checkpoint(tmp_path):
    class FullDisk(FakeEngine):
        def write(self, directory):
            raise OSError(28, "No space left on device")

    claim_run(tmp_path, Owner(1))
    with pytest.raises(StorageError, match="No space left on device, and there is no earlier one: free space"):
        RankFiles(tmp_path, Owner(1), "train", 0).write(4, RankPart.copy({"train/actor": FullDisk(0)}, {}))
    write(tmp_path, 4)
    with pytest.raises(StorageError, match="No space left on device; the previous checkpoint is intact"):
        RankFiles(tmp_path, Owner(1), "train", 0).write(8, RankPart.copy({"train/actor": FullDisk(0)}, {}))
    assert not (tmp_path / "checkpoints" / directory_name(8, Owner(1))).exists()
    assert choose_start(tmp_path / "checkpoints", "auto").step == 4


def test_a_place_that_cannot_be_made_is_a_storage_error(tmp_path):
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(StorageError, match="cannot write .*: Not a directory, and there is no earlier one"):
        RankFiles(tmp_path, Owner(1), "train", 0).write(4, RankPart.copy({}, {}))


def test_what_the_system_said_is_found_wherever_a_library_hid_it():
    answer = RuntimeError("unexpected pos 704")
    answer.__context__ = OSError(28, "No space left on device")
    wrapped = StorageError("cannot be written")
    wrapped.__cause__ = answer
    assert storage_reason(wrapped) == "No space left on device"
    assert storage_reason(StorageError("Traceback\n  File\nRuntimeError: unexpected pos 704\n")).endswith("pos 704")


def checkpoint_of(step, score):
    return Committed(Path(str(step)), Manifest(step=step, attempt=1, plan_hash="", score=score, files={}))


def test_retention_keeps_the_last_and_the_best():
    scores = {1: 0.3, 2: 0.9, 3: 0.5, 4: None, 5: 0.1}
    every = [checkpoint_of(s, score) for s, score in scores.items()]
    # last two are 4 and 5; best two of the scored are 2 and 3
    assert [c.step for c in to_delete(every, keep_last=2, keep_best=2)] == [1]
    assert [c.step for c in to_delete(every, keep_last=1, keep_best=0)] == [1, 2, 3, 4]
    assert to_delete(every, keep_last=9, keep_best=0) == []


def test_of_equally_good_checkpoints_the_later_are_kept():
    every = [checkpoint_of(step, 0.5) for step in (1, 2, 3, 4)] + [checkpoint_of(5, 0.1)]
    # 5 is the last; of 1 to 4, all as good as each other, the two latest
    assert [c.step for c in to_delete(every, keep_last=1, keep_best=2)] == [1, 2]


def test_committing_applies_retention(tmp_path):
    for step in (1, 2, 3):
        write(tmp_path, step, keep_last=1)
    assert [c.step for c in committed(tmp_path / "checkpoints")] == [3]
    assert len(list((tmp_path / "checkpoints").iterdir())) == 1


def test_going_back_to_a_step_forgets_later_ones_and_leftovers(tmp_path):
    for step in (2, 4, 6):
        write(tmp_path, step, keep_last=9)
    RankFiles(tmp_path, Owner(1), "train", 0).write(8, RankPart.copy({}, {}))
    discard_after(tmp_path / "checkpoints", 4)
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == [
        directory_name(2, Owner(1)),
        directory_name(4, Owner(1)),
    ]
