"""Real launchers with real fake workers."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.process.last_words import TERMINATION_LOG, LastWords, read_last_words
from rljob_worker.tests.waiting import is_gone, pid_in, wait_for

POD_PROCESS = Path(__file__).with_name("pod_process.py")


@contextlib.contextmanager
def launcher(tmp_path, num_workers, script, **popen):
    """A running launcher; `process.port` is its metrics port."""
    command = [sys.executable, str(POD_PROCESS), str(tmp_path), str(num_workers), json.dumps(script)]
    environment = os.environ | {TERMINATION_LOG: str(tmp_path / "pod.json")} | popen.pop("env", {})
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, **popen)
    try:
        process.port = json.loads(process.stdout.readline())["metricsPort"]
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def run(tmp_path, num_workers, script):
    with launcher(tmp_path, num_workers, script) as process:
        return process.wait(TEST_TIMEOUT_SECONDS)


def get(port, page):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{page}", timeout=TEST_TIMEOUT_SECONDS) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_everybody_done_is_zero(tmp_path):
    assert run(tmp_path, 2, {}) == 0


def test_a_failure_ends_the_others_and_names_itself(tmp_path):
    words = {"code": 65, "step": 7, "checkpoint": 5, "cause": "no column answer"}
    script = {"1": [["words", words], ["exit", 65]], "*": [["hang"]]}
    assert run(tmp_path, 3, script) == 65
    left = read_last_words(tmp_path / "pod.json")
    assert left == LastWords(65, step=7, checkpoint=5, cause="no column answer", worker="train-0-1")


def test_a_cause_outranks_the_retries_that_came_first(tmp_path):
    # rank 0 gives up first because rank 1 is about to fail: within the settle time, 65 wins over 75
    marker = tmp_path / "gave-up"
    script = {"0": [["pid", str(marker)], ["exit", 75]], "1": [["wait_file", str(marker)], ["exit", 65]]}
    assert run(tmp_path, 2, script) == 65


def test_killed_workers_do_not_change_the_verdict(tmp_path):
    assert run(tmp_path, 2, {"0": [["exit", 75]], "1": [["hang"]]}) == 75


def test_death_by_signal_is_128_plus_its_number(tmp_path):
    assert run(tmp_path, 2, {"0": [["die", int(signal.SIGSEGV)]], "1": [["hang"]]}) == 128 + 11
    assert "SIGSEGV" in read_last_words(tmp_path / "pod.json").cause


def test_terminate_lets_the_workers_checkpoint(tmp_path):
    ready = [tmp_path / "ready-0", tmp_path / "ready-1"]
    script = {
        str(rank): [["block", 15], ["pid", str(ready[rank])], ["wait_signal", 15], ["exit", 76]] for rank in (0, 1)
    }
    with launcher(tmp_path, 2, script) as process:
        for path in ready:
            wait_for(path.exists)
        process.terminate()
        assert process.wait(TEST_TIMEOUT_SECONDS) == 76


def test_interrupt_ends_workers_that_do_not_listen(tmp_path):
    ready = tmp_path / "ready"
    with launcher(tmp_path, 1, {"0": [["block", 2], ["pid", str(ready)], ["hang"]]}) as process:
        worker = pid_in(ready)
        process.send_signal(signal.SIGINT)
        assert process.wait(TEST_TIMEOUT_SECONDS) == 130
        assert is_gone(worker)


def test_grandchildren_in_the_workers_group_end_too(tmp_path):
    pid_file = tmp_path / "grandchild"
    assert run(tmp_path, 1, {"0": [["grandchild", str(pid_file)], ["exit", 70]]}) == 70
    wait_for(lambda: is_gone(pid_in(pid_file)))


def test_workers_die_with_a_killed_launcher(tmp_path):
    files = [tmp_path / "0", tmp_path / "1"]
    with launcher(tmp_path, 2, {str(n): [["pid", str(files[n])], ["hang"]] for n in (0, 1)}) as process:
        pids = [pid_in(path) for path in files]
        process.kill()
        for pid in pids:
            wait_for(lambda pid=pid: is_gone(pid))


def test_end_of_the_lifeline_ends_the_pod(tmp_path):
    read_end, write_end = os.pipe()
    ready, child = tmp_path / "ready", tmp_path / "child"
    script = {"0": [["grandchild", str(child)], ["pid", str(ready)], ["hang"]]}
    with launcher(tmp_path, 1, script, pass_fds=(read_end,), env={"RLJOB_LIFELINE_FD": str(read_end)}) as process:
        os.close(read_end)
        pids = [pid_in(ready), pid_in(child)]
        os.close(write_end)
        assert process.wait(TEST_TIMEOUT_SECONDS) == 137
        for pid in pids:
            wait_for(lambda pid=pid: is_gone(pid))


def test_each_worker_has_its_log(tmp_path):
    assert run(tmp_path, 2, {"0": [["say", "I am zero"]], "1": [["say", "I am one"]]}) == 0
    assert (tmp_path / "worker-train-0-0.log").read_text() == "I am zero\n"
    assert (tmp_path / "worker-train-0-1.log").read_text() == "I am one\n"


def test_one_port_serves_all_workers(tmp_path):
    go = tmp_path / "go"
    progress = {"phase": "Running", "step": 3, "totalSteps": 10, "reward": 0.5}
    script = {
        "0": [["report", {"reward/mean": 0.5, "time/rollout_seconds": 2.0}, progress], ["wait_file", str(go)]],
        "1": [["report", {"time/rollout_seconds": 3.0}], ["wait_file", str(go)]],
    }
    with launcher(tmp_path, 2, script) as process:
        page = wait_for(lambda: (text := get(process.port, "/metrics")[1]).count("rljob_stage_seconds{") == 2 and text)
        assert 'rljob_stage_seconds{rank="0",stage="rollout"} 2.0' in page
        assert 'rljob_stage_seconds{rank="1",stage="rollout"} 3.0' in page
        assert 'rljob_reward_mean{rank="0"} 0.5' in page
        status, body = get(process.port, "/progress")
        assert status == 200 and json.loads(body) == progress | {"attempt": 1}
        assert get(process.port, "/healthz") == (200, "ok\n")
        assert get(process.port, "/else")[0] == 404
        go.touch()
        assert process.wait(TEST_TIMEOUT_SECONDS) == 0


@pytest.mark.parametrize("missing", ["RLJOB_GROUP", "RLJOB_PLAN"])
def test_a_launcher_without_its_environment_says_what_is_missing(missing, tmp_path):
    keep = {name: value for name, value in os.environ.items() if not name.startswith("RLJOB_")}
    environment = keep | {"RLJOB_GROUP": "train", "RLJOB_PLAN": str(tmp_path / "plan.json")}
    del environment[missing]
    command = [sys.executable, "-m", "rljob_worker.launcher"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ended.returncode == 64
    assert f"{missing} is not set" in ended.stderr and "Traceback" not in ended.stderr
