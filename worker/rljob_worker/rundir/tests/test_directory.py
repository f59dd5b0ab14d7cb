"""The directory of a run: locks, notes and files."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from rljob_worker.errors import InvalidJob, StorageError
from rljob_worker.job_paths import missing_paths, with_absolute_paths
from rljob_worker.process.child import ready_line
from rljob_worker.process.marked_processes import ENV_MARK, end_marked_processes, marked_pids
from rljob_worker.rundir.directory import RunDirectory, RunLock, RunNote, is_locked, runs_in
from rljob_worker.tests.documents import job

NOTE = RunNote(
    name="tiny", phase="Running", pid=1, attempt=3, restarts=1, started_seconds=1, updated_seconds=2, total_steps=10
)


@pytest.fixture
def directory(tmp_path):
    directory = RunDirectory(tmp_path / "tiny")
    directory.prepare()
    return directory


def test_a_run_that_spills_has_a_directory_for_it(directory):
    assert not directory.spill.exists()
    directory.prepare(spills=True)
    assert directory.spill.is_dir() and directory.spill.parent == directory.path


def test_a_lock_is_exclusive_and_names_its_owner(directory):
    with RunLock(directory.lock):
        assert is_locked(directory.lock)
        with pytest.raises(InvalidJob, match=f"in use by process {os.getpid()}"), RunLock(directory.lock):
            pass
    assert not is_locked(directory.lock)


def test_a_dead_process_holds_no_lock(directory):
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from rljob_worker.rundir.directory import RunLock\n"
        "RunLock(Path(sys.argv[1])).__enter__()\n"
        "os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(directory.lock)]).returncode == -9
    with RunLock(directory.lock):
        pass


def test_a_note_of_a_dead_supervisor_is_lost(directory):
    directory.write(directory.note, NOTE.to_json())
    with RunLock(directory.lock):
        assert directory.read_note() == NOTE
    assert directory.read_note() == replace(NOTE, phase="Lost")
    directory.write(directory.note, replace(NOTE, phase="Failed").to_json())
    assert directory.read_note().phase == "Failed"


def test_notes_of_other_versions_are_read(directory):
    directory.write(directory.note, NOTE.to_json().replace('"name"', '"mood": "good", "name"'))
    assert directory.read_note().name == "tiny"
    directory.write(directory.note, '{"name": "tiny"}')
    assert directory.read_note() is None


def test_attempts_count_on_from_the_highest_ever_seen(directory):
    assert directory.last_attempt() == 0
    directory.write(directory.note, NOTE.to_json())
    assert directory.last_attempt() == 3
    (directory.path / "attempt").write_text("5")
    assert directory.last_attempt() == 5


def test_runs_are_found_by_their_notes(directory):
    (directory.path.parent / "else").mkdir()
    assert list(runs_in(directory.path.parent)) == []
    directory.write(directory.note, NOTE.to_json())
    assert [item.name for item in runs_in(directory.path.parent)] == ["tiny"]
    assert list(runs_in(directory.path / "nowhere")) == []


def test_a_directory_that_cannot_be_made_is_a_storage_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot create .*/file/tiny"):
        RunDirectory(tmp_path / "file" / "tiny").prepare()


def test_paths_beside_the_yaml_become_absolute_and_hub_names_stay(tmp_path):
    for name in ("model", "data", "warm"):
        (tmp_path / name).mkdir()
    for name in ("a.parquet", "b.parquet"):
        (tmp_path / "data" / name).touch()
    data = {"train": [{"path": "data/*.parquet"}, {"path": "openai/gsm8k"}, {"path": "s3://b/a"}], "batchSize": 4}
    written = job(models=[{"name": "actor", "path": "model"}], data=data, checkpoint={"initFrom": "./warm"})
    spec = with_absolute_paths(written, tmp_path).spec
    assert spec.models[0].path == f"{tmp_path}/model"
    assert [item.path for item in spec.data.train] == [
        f"{tmp_path}/data/*.parquet",
        "openai/gsm8k",
        "s3://b/a",
    ]
    assert spec.checkpoint.init_from == f"{tmp_path}/warm"
    assert missing_paths(written, tmp_path) == []


def test_models_of_shipped_services_are_paths_and_options_of_others_are_not(tmp_path):
    (tmp_path / "judge").mkdir()
    shipped = {"name": "a", "run": "rljob_worker.services:reward_model", "options": {"path": "judge", "tokenizer": "x"}}
    own = {"name": "b", "run": "mine:app", "options": {"path": "judge"}}
    services = with_absolute_paths(job(services=[shipped, own]), tmp_path).spec.services
    assert [service.options for service in services] == [
        {"path": str(tmp_path / "judge"), "tokenizer": "x"},
        {"path": "judge"},
    ]


def test_tokenizers_of_models_of_rewards_are_paths_and_options_of_functions_are_not(tmp_path):
    (tmp_path / "words").mkdir()
    graded = {"name": "good", "run": "RewardModel", "model": "taste", "options": {"tokenizer": "words"}}
    own = {"name": "mine", "run": "mine:score", "options": {"tokenizer": "words"}}
    models = [{"name": "actor", "path": "m"}, {"name": "taste", "path": "t"}]
    rewards = with_absolute_paths(job(models=models, rewards=[own, graded]), tmp_path).spec.rewards
    assert [reward.options["tokenizer"] for reward in rewards] == ["words", str(tmp_path / "words")]


@pytest.mark.parametrize(
    ("path", "is_missing"),
    [
        ("some/data", False),
        ("data.parquet", True),
        ("data/*.jsonl", True),
        ("./data", True),
        ("/data", True),
        ("s3://b/a.jsonl", False),
    ],
)
def test_what_must_be_local_is_missed(tmp_path, path, is_missing):
    written = job(data={"train": [{"path": path}], "batchSize": 4})
    assert [missing_path.place for missing_path in missing_paths(written, tmp_path)] == [
        "spec.data.train[0].path"
    ] * is_missing


def test_a_model_is_local_only_if_it_says_so(tmp_path):
    assert missing_paths(job(models=[{"name": "actor", "path": "org/model-1.5"}]), tmp_path) == []
    assert len(missing_paths(job(models=[{"name": "actor", "path": "./model"}]), tmp_path)) == 1


def test_ready_lines():
    assert ready_line('warming up\n{"no": 1}\n{"ready": "x", "address": "h:1"}\n') == {"ready": "x", "address": "h:1"}
    assert ready_line('{"ready": "x"') is None
    assert ready_line("{torn\n") is None


def test_a_family_is_found_by_its_mark_and_ended():
    mark = os.urandom(8).hex()
    processes = [stubborn(mark, start_new_session=True) for _ in range(2)]
    stranger = stubborn(mark + "0")
    try:
        assert set(marked_pids(mark)) == {process.pid for process in processes}
        # nobody else collects these children, and zombies have no environment: they count as gone
        assert end_marked_processes(mark, grace_seconds=0.1)
        assert [process.wait() for process in processes] == [-9, -9]
        assert stranger.poll() is None
    finally:
        stranger.kill()
        for process in (*processes, stranger):
            process.wait()
            process.stdout.close()


def stubborn(mark, **options):
    """A process of a family that does not listen to SIGTERM."""
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
    environment = os.environ | {ENV_MARK: mark}
    process = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, **options)
    process.stdout.readline()
    return process
