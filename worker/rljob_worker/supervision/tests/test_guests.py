"""Guests of a local run: real process trees of fakes, which end and begin again beside a gang that goes on."""

import json
import os
import signal
from pathlib import Path

import pytest

from rljob_worker.rundir.directory import RunDirectory
from rljob_worker.supervision.tests.test_supervisor import rest_of, run, supervisor
from rljob_worker.tests.waiting import is_gone, parent_of, pid_in, wait_for


@pytest.fixture
def run_dir(tmp_path):
    return tmp_path / "tiny"


def life(run_dir, name):
    return [["pid", str(run_dir.parent / name)], ["hang"]]


def test_a_guest_whose_processes_are_killed_begins_again_and_the_gang_goes_on(run_dir):
    child, worker, release = (run_dir.parent / name for name in ("child", "worker", "release"))
    guest = [["grandchild", str(child), True], ["pid", str(worker)], ["hang"]]
    script = {"train-0": [["wait_file", str(release)]], "rollout-0": guest, "rollout-1": life(run_dir, "other")}
    with supervisor(run_dir, script=script, generators=2, maxRestarts=0) as process:
        first, first_child, other = pid_in(worker), pid_in(child), pid_in(run_dir.parent / "other")
        worker.unlink()
        os.kill(parent_of(first), signal.SIGKILL)
        os.kill(first, signal.SIGKILL)
        second = pid_in(worker)
        assert second != first and is_gone(first_child) and not is_gone(other)
        release.touch()
        output = rest_of(process)
    assert process.returncode == 0, output
    assert "generator rollout-0 ended: killed by signal 9 (often out of memory); it starts again in 1 s" in output
    assert "rollout-1 ended" not in output
    assert "end Succeeded 0 restarts 0" in output
    assert is_gone(second) and is_gone(other) and is_gone(pid_in(child))


def test_the_address_book_has_the_guests_that_are_there(run_dir):
    script = {"train-0": [["wait_file", str(run_dir.parent / "release")]], "*": life(run_dir, "guest")}
    with supervisor(run_dir, script=script, generators=1) as process:
        pid = pid_in(run_dir.parent / "guest")
        environment = dict(
            item.partition(b"=")[::2] for item in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if item
        )
        book = json.loads(Path(environment[b"RLJOB_PEERS"].decode()).read_text())
        # of at most two there is one
        assert book == {"train": ["127.0.0.1:1"], "rollout": ["127.0.0.1:1", None]}
        assert environment[b"RLJOB_HOST_INDEX"] == b"0"
        (run_dir.parent / "release").touch()
        rest_of(process)
    assert process.returncode == 0


def test_a_guest_that_has_nothing_left_to_do_does_not_begin_again(run_dir):
    log = RunDirectory(run_dir).logs(1)
    script = {"train-0": [["wait_log", "rollout-0-0"]], "rollout-0": [["say", "done"]]}
    code, output = run(run_dir, script=script, generators=1)
    assert code == 0 and "ended" not in output, output
    assert not list(log.glob("*-start-2.log"))


@pytest.mark.parametrize("exit_code", [64, pytest.param(65, marks=pytest.mark.slow)])
def test_a_guest_that_says_that_the_job_is_bad_ends_it(run_dir, exit_code):
    words = {"code": exit_code, "cause": "prompt 3 is no text"}
    script = {"train-0": [["hang"]], "rollout-0": [["words", words], ["exit", exit_code]]}
    code, output = run(run_dir, script=script, generators=1, maxRestarts=3)
    assert code == exit_code, output
    assert f"end Failed {exit_code} restarts 0" in output and "rollout-0" in output


@pytest.mark.slow
def test_a_gang_that_restarts_begins_with_other_guests(run_dir):
    worker, failing = run_dir.parent / "worker", run_dir.parent / "failing"
    script = {"train-0": [["pid", str(failing)], ["hang"]], "rollout-0": life(run_dir, "worker")}
    with supervisor(run_dir, script=script, generators=1, maxRestarts=1) as process:
        first, gang = pid_in(worker), pid_in(failing)
        worker.unlink()
        failing.unlink()
        os.kill(gang, signal.SIGKILL)
        assert pid_in(worker) != first and is_gone(first)
        wait_for(failing.exists)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        output = rest_of(process)
    assert "restarts 1" in output and "generator" not in output, output


def test_a_run_that_is_suspended_has_its_guests_to_the_checkpoint_and_new_ones_when_it_goes_on(run_dir):
    ready, worker, release = (run_dir.parent / name for name in ("ready", "worker", "release"))
    asked = [["block", 15], ["metrics", {"step": 1}], ["pid", str(ready)], ["wait_signal", 15]]
    script = {"train-0": [*asked, ["wait_file", str(release)], ["exit", 76]], "rollout-0": life(run_dir, "worker")}
    with supervisor(run_dir, script=script, generators=1) as process:
        pid_in(ready)
        first = pid_in(worker)
        process.send_signal(signal.SIGINT)
        while "with a checkpoint" not in process.said.readline():
            pass
        assert not is_gone(first), "the steps before the checkpoint need rows"
        release.touch()
        output = rest_of(process)
        assert process.returncode == 76 and is_gone(first), output
    worker.unlink()
    release.unlink()
    script = {"train-0": [["wait_file", str(release)]], "rollout-0": life(run_dir, "worker")}
    with supervisor(run_dir, script=script, generators=1, resume="latest") as process:
        second = pid_in(worker)
        release.touch()
        output = rest_of(process)
    assert process.returncode == 0 and second != first and is_gone(second), output


def test_data_buffers_of_guests_have_certificates(run_dir):
    script = {"train-0": [["wait_log", "rollout-0-0"]], "rollout-0": [["list_files", "RLJOB_TLS_DIR"]]}
    code, output = run(run_dir, script=script, generators=1, tls=True)
    assert code == 0, output
    said = (RunDirectory(run_dir).logs(1) / "worker-rollout-0-0.log").read_text()
    assert "rollout-0: authority.crt" in said or "tls-1/rollout-0" in said, said
