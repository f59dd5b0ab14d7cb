"""Journals in a directory and in an object store: one attempt writes what the next reads; it goes when it is over."""

import pytest

from rljob_worker.conversations.journal import files
from rljob_worker.conversations.journal.files import JournalFolder
from rljob_worker.conversations.playing.tests.playing import FunctionWorld, SteppingEngine, content, play, tasks_of
from rljob_worker.conversations.playing.tests.test_loop import answer_of, drawn, playful
from rljob_worker.errors import StorageError
from rljob_worker.storage.paths import storage_path
from rljob_worker.storage.tests.s3_server import s3_bucket

NUMBERS = frozenset(range(4))


@pytest.fixture(params=["directory", "store"])
def home(request, tmp_path, monkeypatch):
    if request.param == "directory":
        yield tmp_path
        return
    with s3_bucket("runs", monkeypatch):
        yield storage_path("s3://runs/job")


def folder(home, attempt, job="job", over=()):
    return JournalFolder(
        home / "journals", f"actor-00000-{attempt}", job, is_over=lambda step, now: step in over, tidies=True
    )


def played(journals):
    """Conversations of step 3, and how often the world was asked."""
    world, records = FunctionWorld(answer_of), journals.records(3, NUMBERS)
    entries = journals.entries(3)
    result = play(
        playful,
        tasks_of("hi", "ho", group_size=2),
        SteppingEngine(drawn),
        caller=world,
        records=records,
        entries=entries,
    )
    return [content(item) for item in result], len(world.calls)


def test_the_next_attempt_reads_what_was_written(home, monkeypatch):
    monkeypatch.setattr(files, "SEGMENT_SECONDS", 0.0)  # each line is an object; nothing is lost by a kill
    killed, again = folder(home, 0), folder(home, 1)
    first, num_calls = played(killed)  # not closed before it is read, as of a process that was killed
    assert num_calls > 0
    assert played(again) == (first, 0)
    for journals in (killed, again):
        journals.close()
    # another job's is of no use, and what is over goes
    assert folder(home, 2, job="other").records(3, NUMBERS) == {}
    assert folder(home, 3, over=[3]).records(4, NUMBERS) == {}
    assert list((home / "journals").glob("step-*")) == []


def test_lines_of_a_store_wait_for_others_until_the_step_is_over(monkeypatch):
    with s3_bucket("runs", monkeypatch):
        home = storage_path("s3://runs/job")
        journals = folder(home, 0)
        first, _ = played(journals)
        assert folder(home, 1).records(3, NUMBERS) == {}
        journals.close()
        assert played(folder(home, 1)) == (first, 0)


def test_a_store_that_fails_is_named(monkeypatch):
    with s3_bucket("runs", monkeypatch):
        journals = folder(storage_path("s3://absent/job"), 0)
        journals.entries(3).append({"trajectory": 0})
        with pytest.raises(StorageError, match="cannot write the journal s3://absent/job/journals/step-00000003/actor"):
            journals.close()
