"""Real process trees: supervisor, root, fake data buffers, real launchers, fake workers, grandchildren."""

import contextlib
import fcntl
import json
import os
import signal
from pathlib import Path

import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.local.pods.interface import interface_of
from rljob_worker.rundir.directory import RunDirectory, is_locked
from rljob_worker.tests.waiting import is_gone, parent_of, pid_in, wait_for
from rljob_worker.tests.warm import WarmProcess


@contextlib.contextmanager
def supervisor(run_dir, **options):
    """A running one; what it and its processes say is to be read from `said`."""
    reader, writer = os.pipe()
    with open(reader) as said:
        try:
            process = WarmProcess(
                "rljob_worker.supervision.tests.supervise",
                str(run_dir),
                json.dumps(options),
                stdout=writer,
                stderr=writer,
            )
        finally:
            os.close(writer)
        process.said = said
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def rest_of(process):
    """Once it has ended."""
    output = process.said.read()
    process.wait(TEST_TIMEOUT_SECONDS)
    return output


def run(run_dir, **options):
    """Exit code and output of a whole run."""
    with supervisor(run_dir, **options) as process:
        output = rest_of(process)
        return process.returncode, output


@pytest.fixture
def run_dir(tmp_path):
    return tmp_path / "tiny"


def test_workers_on_one_machine_meet_by_its_loopback_whatever_its_name_resolves_to(run_dir):
    code, output = run(run_dir, groups=[["train", 1, 1]], script={"*": [["say_environment", "GLOO_SOCKET_IFNAME"]]})
    assert code == 0, output
    said = (run_dir / "logs" / "attempt-1" / "worker-train-0-0.log").read_text()
    assert said == f"GLOO_SOCKET_IFNAME={interface_of('127.0.0.1')}\n" != "GLOO_SOCKET_IFNAME=\n"


def test_a_job_of_two_groups_runs_to_its_end(run_dir):
    script = {
        "*": [["say_environment", "RLJOB_GROUP"], ["say_environment", "OMP_NUM_THREADS"], ["metrics", {"step": 1}]]
    }
    code, output = run(run_dir, groups=[["train", 2, 1], ["rollout", 1, 2]], script=script)
    assert code == 0, output
    assert output.splitlines()[-1] == "end Succeeded 0 restarts 0: "
    logs = run_dir / "logs" / "attempt-1"
    assert sorted(path.name for path in logs.glob("*.log")) == [
        "databuffer-rollout-0.log", "databuffer-train-0.log", "databuffer-train-1.log",
        "launcher-rollout-0.log", "launcher-train-0.log", "launcher-train-1.log",
        "worker-rollout-0-0.log", "worker-rollout-0-1.log", "worker-train-0-0.log", "worker-train-1-1.log",
    ]  # fmt: skip
    # four workers share the cores; two cores or four give one thread each
    assert (logs / "worker-train-1-1.log").read_text().startswith("RLJOB_GROUP=train\nOMP_NUM_THREADS=")
    assert RunDirectory(run_dir).read_note().phase == "Succeeded"
    diary = (run_dir / "logs" / "supervisor.log").read_text().splitlines()
    assert [line.partition(" ")[2] for line in diary][::len(diary) - 1] == [
        "Starting, attempt 1", "Succeeded, attempt 1, exit code 0: ",
    ]  # fmt: skip
    assert (run_dir / "token").stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
def test_every_attempt_gets_certificates_of_its_own(run_dir):
    says = ["say_environment", "RLJOB_TLS_DIR"]
    script = {"train-0": [says, ["wait_log", "train-1-1"], ["exit", 75]], "train-1": [says, ["hang"]]}
    code, output = run(run_dir, groups=[["train", 2, 1]], script=script, tls=True, maxRestarts=1)
    assert code == 75, output
    places = [
        (run_dir / "logs" / f"attempt-{attempt}" / f"worker-train-{host}-{host}.log").read_text()
        for attempt in (1, 2)
        for host in (0, 1)
    ]
    for place, end in zip(places, ["tls-1/train-0", "tls-1/train-1", "tls-2/train-0", "tls-2/train-1"], strict=True):
        path = Path(place.partition("=")[2].strip())
        assert str(path).endswith(end) and not path.exists()  # keys do not outlive a run


def test_a_named_cause_ends_the_run(run_dir):
    words = {"code": 65, "step": 3, "cause": "BadData: no column answer in data/train.parquet"}
    script = {"train-1": [["words", words], ["exit", 65]], "*": [["hang"]]}
    code, output = run(run_dir, groups=[["train", 2, 1]], script=script, maxRestarts=3)
    assert code == 65
    assert "worker-train-1-1: BadData: no column answer in data/train.parquet; exit code 65: the data" in output
    assert RunDirectory(run_dir).read_note().log.endswith("logs/attempt-1/worker-train-1-1.log")


def test_a_peers_retry_does_not_hide_the_cause(run_dir):
    # train-0 gives up (75) before train-1 fails (65); each alone in its pod, so that launchers end in that order
    gave_up = run_dir.parent / "gave-up"
    script = {"train-0": [["pid", str(gave_up)], ["exit", 75]], "train-1": [["wait_file", str(gave_up)], ["exit", 65]]}
    code, output = run(run_dir, groups=[["train", 2, 1]], script=script, maxRestarts=3)
    assert code == 65, output


def test_a_lost_peer_restarts_the_gang_from_its_checkpoint(run_dir):
    script = {
        "attempt-1": [["say_environment", "RLJOB_RESUME"], ["checkpoint", 4], ["exit", 75]],
        "attempt-2": [["say_environment", "RLJOB_RESUME"]],
    }
    code, output = run(run_dir, script=script, maxRestarts=1)
    assert code == 0, output
    assert "restart 1 of 1, from the checkpoint of step 4" in output
    assert "end Succeeded 0 restarts 1" in output
    logs = run_dir / "logs"
    assert (logs / "attempt-1" / "worker-train-0-0.log").read_text() == "RLJOB_RESUME=never\n"
    assert (logs / "attempt-2" / "worker-train-0-0.log").read_text() == "RLJOB_RESUME=auto\n"


def test_what_the_lead_warns_of_while_it_starts_is_said(run_dir):
    ours = "2026-01-01 00:00:00,000 WARNING rljob_worker.checkpoint.restore: passing over the checkpoint of step 2"
    library = "2026-01-01 00:00:00,000 WARNING transformers: slow"
    going_on = run_dir.parent / "go"
    script = [["say", ours], ["say", library], ["metrics", {"step": 1}], ["wait_file", str(going_on)]]
    with supervisor(run_dir, script={"*": script}) as process:
        said = [process.said.readline() for _ in range(4)]
        going_on.touch()
        assert process.wait(TEST_TIMEOUT_SECONDS) == 0
    assert said[1].startswith("  data buffers: in ")
    assert said[2:] == ["phase Running attempt 1\n", "warning: passing over the checkpoint of step 2\n"]


@pytest.mark.parametrize(
    ("reported", "said", "doing"),
    [
        (("data: 12 rows, in 0.3 s", "models ..."), "data: 12 rows, in 0.3 s", "models"),
        (("rewards ...", "rewards: in 0.3 s"), "rewards: in 0.3 s", "first step"),
    ],
    ids=["a phase has begun", "the last has ended"],
)
def test_what_workers_do_while_they_start_is_said_and_kept_for_status(run_dir, reported, said, doing):
    going_on = run_dir.parent / "go"
    script = [["say", f"2026-01-01 00:00:00,000 INFO rljob.start: {item}"] for item in reported]
    with supervisor(run_dir, script={"*": [*script, ["wait_file", str(going_on)]]}) as process:
        while process.said.readline() != f"  {said}\n":
            pass
        wait_for(lambda: RunDirectory(run_dir).read_note().doing == doing)
        going_on.touch()
        assert process.wait(TEST_TIMEOUT_SECONDS) == 0


@pytest.mark.parametrize("skew_seconds", [-3600, pytest.param(0, marks=pytest.mark.slow), 3600])
def test_a_run_is_seen_to_run_whatever_the_clock_of_its_storage_says(run_dir, skew_seconds):
    going_on = run_dir.parent / "go"
    script = [["metrics", {"step": 1}, skew_seconds], ["wait_file", str(going_on)]]
    with supervisor(run_dir, script={"*": script}) as process:
        said = [process.said.readline() for _ in range(3)]
        going_on.touch()
        assert process.wait(TEST_TIMEOUT_SECONDS) == 0
    assert said[0] == "phase Starting attempt 1\n" and said[2] == "phase Running attempt 1\n"


def test_steps_of_an_earlier_attempt_do_not_make_a_run_run(run_dir):
    script = {"attempt-1": [["metrics", {"step": 1}, 3600], ["exit", 75]], "*": []}
    code, output = run(run_dir, script=script, maxRestarts=1)
    assert code == 0 and "phase Running attempt 2" not in output


def test_restarts_have_an_end(run_dir):
    code, output = run(run_dir, script={"*": [["exit", 75]]}, maxRestarts=2)
    assert code == 75
    assert "end Failed 75 restarts 2" in output
    assert (run_dir / "logs" / "attempt-3").is_dir() and not (run_dir / "logs" / "attempt-4").exists()


def test_a_second_run_counts_attempts_on(run_dir):
    run(run_dir, script={"*": [["exit", 65]]})
    run(run_dir, script={"*": [["exit", 65]]})
    assert sorted(path.name for path in (run_dir / "logs").glob("attempt-*")) == ["attempt-1", "attempt-2"]


def test_a_data_buffer_that_cannot_start_ends_the_run_with_its_words(run_dir):
    code, output = run(run_dir, buffer=74)
    assert code == 74
    assert "databuffer-train-0: cannot reserve 1 GiB of shared memory; exit code 74" in output


def test_what_a_killed_data_buffer_held_does_not_outlive_its_attempt(run_dir, tmp_path, monkeypatch):
    for name in ("arena", "spill"):
        (tmp_path / name).mkdir()
        for whose in ("killed", "neighbours"):
            (tmp_path / name / f"rljob-{name}-{whose}").write_bytes(b"rows")
    monkeypatch.setenv("RLJOB_ARENA_DIR", str(tmp_path / "arena"))
    with contextlib.ExitStack() as stack:
        for name in ("arena", "spill"):
            fcntl.flock(stack.enter_context((tmp_path / name / f"rljob-{name}-neighbours").open()), fcntl.LOCK_EX)
        code, output = run(run_dir, buffer=74, spill=str(tmp_path / "spill"))
    assert code == 74, output
    assert [path.name for path in (tmp_path / "arena").iterdir()] == ["rljob-arena-neighbours"]
    assert [path.name for path in (tmp_path / "spill").iterdir()] == ["rljob-spill-neighbours"]


def test_a_launcher_that_is_killed_restarts_the_gang_and_leaves_nobody(run_dir):
    worker, child = run_dir.parent / "worker", run_dir.parent / "child"
    script = {"attempt-1": [["grandchild", str(child), True], ["pid", str(worker)], ["hang"]], "*": []}
    with supervisor(run_dir, script=script, maxRestarts=1) as process:
        pid, child_pid = pid_in(worker), pid_in(child)
        os.kill(parent_of(pid), signal.SIGKILL)
        output = rest_of(process)
        assert process.returncode == 0, output
        assert "launcher-train-0: " in output and "killed by signal 9" in output
        assert is_gone(pid) and is_gone(child_pid)


def test_a_root_that_is_killed_restarts_the_gang_under_another_and_leaves_nobody(run_dir):
    worker, child = run_dir.parent / "worker", run_dir.parent / "child"
    script = {"attempt-1": [["grandchild", str(child), True], ["pid", str(worker)], ["hang"]], "*": []}
    with supervisor(run_dir, script=script, maxRestarts=1) as process:
        pid, child_pid = pid_in(worker), pid_in(child)
        os.kill(parent_of(parent_of(pid)), signal.SIGKILL)
        output = rest_of(process)
        assert process.returncode == 0, output
        assert "launcher-train-0: " in output and "killed by signal 9" in output
        assert is_gone(pid) and is_gone(child_pid)


def test_one_request_checkpoints_and_stops(run_dir):
    ready = run_dir.parent / "ready"
    begun = [["block", 15], ["metrics", {"step": 1}], ["pid", str(ready)]]
    script = {"*": [*begun, ["wait_signal", 15], ["exit", 76]]}
    with supervisor(run_dir, script=script, maxRestarts=3) as process:
        pid_in(ready)
        process.send_signal(signal.SIGINT)
        output = rest_of(process)
    assert process.returncode == 76, output
    assert "stopping after this step or the next, with a checkpoint" in output
    assert "end Stopped 76 restarts 0" in output


def test_two_requests_stop_now(run_dir):
    ready, child = run_dir.parent / "ready", run_dir.parent / "child"
    begun = [["block", 15], ["metrics", {"step": 1}], ["grandchild", str(child)], ["pid", str(ready)]]
    with supervisor(run_dir, script={"*": [*begun, ["hang"]]}) as process:
        pids = [pid_in(ready), pid_in(child)]
        process.send_signal(signal.SIGINT)
        while "stopping after this step" not in process.said.readline():
            pass
        process.send_signal(signal.SIGINT)
        rest_of(process)
        assert process.returncode == 130
        assert all(is_gone(pid) for pid in pids)


def test_a_request_that_finds_nobody_listening_is_an_interruption(run_dir):
    ready = run_dir.parent / "ready"
    with supervisor(run_dir, script={"*": [["metrics", {"step": 1}], ["pid", str(ready)], ["hang"]]}) as process:
        pid_in(ready)
        process.send_signal(signal.SIGTERM)
        rest_of(process)
        assert process.returncode == 130


@pytest.mark.parametrize(
    ("before", "words"),
    [([], "there is no checkpoint"), ([["checkpoint", 4], ["metrics", {"step": 4}]], "the checkpoint of step 4 stays")],
)
def test_a_request_before_a_step_has_ended_stops_at_once_and_says_what_is_kept(run_dir, before, words):
    ready = run_dir.parent / "ready"
    # workers that heed no request: nobody waits for them
    waits = [["block", 15], ["open_metrics"], ["pid", str(ready)], ["hang"]]
    starts = {"attempt-1": [*before, ["exit", 75]], "*": waits}
    with supervisor(run_dir, script=starts, maxRestarts=3) as process:
        pid = pid_in(ready)
        process.send_signal(signal.SIGINT)
        output = rest_of(process)
        assert process.returncode == 130 and is_gone(pid)
    assert f"stopping now: no step has ended; {words}" in output
    assert f"end Stopped 130 restarts 1: asked to stop; {words}" in output


def test_a_request_while_data_buffers_start_ends_the_run(run_dir):
    with supervisor(run_dir, buffer="silent", maxRestarts=3) as process:
        wait_for((run_dir / "logs" / "attempt-1" / "databuffer-train-0.log").exists)
        process.send_signal(signal.SIGINT)
        output = rest_of(process)
        assert process.returncode == 130, output


@pytest.mark.parametrize("own_session", [False, True])
def test_nothing_outlives_a_killed_supervisor(run_dir, own_session):
    worker, child = run_dir.parent / "worker", run_dir.parent / "child"
    lines = [["say_environment", "RLJOB_BUFFER"], ["grandchild", str(child), own_session], ["pid", str(worker)]]
    with supervisor(run_dir, script={"*": [["block", 15], *lines, ["hang"]]}) as process:
        pids = [pid_in(worker), pid_in(child)]
        said = (run_dir / "logs" / "attempt-1" / "worker-train-0-0.log").read_text()
        scratch = Path(said.strip().removeprefix("RLJOB_BUFFER=")).parent
        assert scratch.is_dir()
        launcher = parent_of(pids[0])
        assert is_locked(run_dir / "lock")
        process.kill()
        for pid in [*pids, launcher]:
            wait_for(lambda pid=pid: is_gone(pid))
        wait_for(lambda: not scratch.exists())
    assert RunDirectory(run_dir).read_note().phase == "Lost"


def test_nothing_outlives_a_supervisor_and_a_launcher_killed_together(run_dir):
    worker, child = run_dir.parent / "worker", run_dir.parent / "child"
    script = {"*": [["grandchild", str(child), True], ["pid", str(worker)], ["hang"]]}
    with supervisor(run_dir, script=script) as process:
        pids = [pid_in(worker), pid_in(child)]
        os.kill(parent_of(pids[0]), signal.SIGKILL)
        process.kill()
        for pid in pids:
            wait_for(lambda pid=pid: is_gone(pid))


def test_a_directory_has_one_supervisor(run_dir):
    ready = run_dir.parent / "ready"
    with supervisor(run_dir, script={"*": [["pid", str(ready)], ["hang"]]}) as process:
        pid_in(ready)
        code, output = run(run_dir)
        assert code != 0
        assert f"{run_dir} is in use by process {process.pid}; wait for it" in output
