"""Checkpoints in a bucket, on a real S3 server: the commit, whom it is refused, and what is kept."""

import pytest

from rljob_worker.checkpoint.manifest import MANIFEST, committed, damage, directory_name
from rljob_worker.checkpoint.restore import ResumePoint, choose_start, delete_checkpoint, discard_after
from rljob_worker.checkpoint.tests.builders import commit, committer
from rljob_worker.checkpoint.writer import RankFiles, RankPart
from rljob_worker.errors import StorageError
from rljob_worker.rundir.ownership import FILE, Owner, claim_run, owner_of
from rljob_worker.storage.files import write_draft
from rljob_worker.storage.paths import storage_path
from rljob_worker.storage.tests.s3_server import s3_bucket

PART = RankPart.copy({}, {})
OLD, NEW = Owner(1, "1111aaaa"), Owner(2, "1111aaaa")


@pytest.fixture
def s3(monkeypatch):
    with s3_bucket("runs", monkeypatch) as server:
        yield server


@pytest.fixture
def home(s3):
    return storage_path("s3://runs/team/tiny")


def test_a_committed_checkpoint_is_found_whole_and_the_newest_are_kept(home):
    claim_run(home, OLD)
    for step in (2, 4, 6):  # the builder keeps two
        path = commit(home, OLD, step)

    result = committed(home / "checkpoints")
    assert [item.step for item in result] == [4, 6]
    assert str(path) == "s3://runs/team/tiny/checkpoints/step-00000006-attempt-1-1111aaaa"
    assert [damage(item) for item in result] == [None, None]
    assert choose_start(home / "checkpoints", "auto") == ResumePoint(6, result[-1].path)
    assert not any("step-00000002" in key for key in home.sizes())


def test_an_object_that_is_gone_or_shorter_is_damage_and_the_older_checkpoint_is_taken(home):
    claim_run(home, OLD)
    first, second = commit(home, OLD, 2), commit(home, OLD, 4)
    (second / "state-train.json").write_text("{ }")
    assert damage(committed(home / "checkpoints")[-1]).endswith("has 3 bytes, its manifest says 2")
    assert choose_start(home / "checkpoints", "auto").checkpoint == first
    (second / "state-train.json").unlink()
    assert damage(committed(home / "checkpoints")[-1]).endswith("state-train.json: not there")


def test_a_draft_is_no_checkpoint_and_is_swept_away_like_any_that_was_never_committed(home):
    RankFiles(home, OLD, "train", 0).write(4, PART)
    draft = write_draft(home / "checkpoints" / directory_name(4, OLD) / MANIFEST, "{}")
    assert committed(home / "checkpoints") == []

    claim_run(home, NEW)
    discard_after(home / "checkpoints", 0)
    RankFiles(home, OLD, "train", 0).write(4, PART)  # a rank that has not heard of it

    with pytest.raises(StorageError, match="somebody else wrote or deleted it"):
        draft.publish()
    assert committed(home / "checkpoints") == []


def test_a_deletion_that_breaks_off_leaves_no_half_of_a_checkpoint_that_looks_good(home, s3):
    claim_run(home, OLD)
    path = commit(home, OLD, 2)
    asked = []

    def break_off(request):
        asked.append(request)
        return ("403 Forbidden", b"<Error><Code>AccessDenied</Code></Error>") if len(asked) > 1 else None

    s3.fail_write = break_off
    with pytest.raises(PermissionError):
        delete_checkpoint(path)
    assert committed(home / "checkpoints") == [] and (path / "state-train.json").is_file()


def test_an_attempt_that_lost_the_run_before_it_commits_is_refused(home):
    RankFiles(home, OLD, "train", 0).write(4, PART)
    claim_run(home, NEW)
    with pytest.raises(StorageError, match="may not commit step 4: the run belongs to attempt 2"):
        committer(home, OLD).commit(4, score=None)
    assert committed(home / "checkpoints") == []


def test_an_attempt_that_loses_the_run_after_it_saw_that_it_owns_it_is_refused_by_the_condition(home, s3):
    """The next attempt comes between the look at the owner and the put."""
    claim_run(home, OLD)
    RankFiles(home, OLD, "train", 0).write(4, PART)

    def take_over(request):
        if request.startswith(f"PUT /runs/team/tiny/checkpoints/{directory_name(4, OLD)}/{MANIFEST}"):
            puts.append(request)
            if len(puts) == 2:  # the first takes the place, the second is the commit
                claim_run(home, NEW)
                discard_after(home / "checkpoints", 0)

    puts = []
    s3.fail_write = take_over
    with pytest.raises(StorageError, match="somebody else wrote or deleted it"):
        committer(home, OLD).commit(4, score=None)
    assert committed(home / "checkpoints") == [] and owner_of(home) == NEW


def test_a_store_that_cannot_be_read_is_not_a_run_without_an_owner(home, s3):
    claim_run(home, OLD)
    s3.require_credentials()
    with pytest.raises(StorageError, match=f"cannot read s3://runs/team/tiny/{FILE}: the store refuses"):
        owner_of(home)
