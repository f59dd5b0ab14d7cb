"""`rljob run` on a real pseudo-terminal: the table, and Ctrl-C as a person presses it."""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys

import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.cli.tests import run_fake_pods
from rljob_worker.cli.tests.test_commands import write_job
from rljob_worker.tests.waiting import is_gone, pid_in, wait_for

CONTROL_C = b"\x03"
STEPPED = ["metrics", {"step": 1, "reward/mean": 0.125}]
"""Before the first step has ended there is nothing to checkpoint, and a run stops at once."""


@contextlib.contextmanager
def on_terminal(folder, script):
    """`rljob run` as the foreground of its own terminal; yields the process and the terminal's other side."""
    ours, theirs = pty.openpty()
    command = [sys.executable, run_fake_pods.__file__, json.dumps(script), "run", "job.yaml"]
    process = subprocess.Popen(
        command, cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "120", "LINES": "40"},
        preexec_fn=lambda: make_foreground(theirs),
    )  # fmt: skip
    os.close(theirs)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()
        with contextlib.suppress(OSError):
            os.close(ours)


def make_foreground(terminal):
    """Give the new session this terminal, so that Ctrl-C is a signal to it."""
    import fcntl
    import termios

    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup make test` ignores it, and so would a run


def read_until(terminal, text):
    seen = ""
    while text not in seen:
        chunk = os.read(terminal, 1 << 16)
        seen += chunk.decode(errors="replace")
    return seen


def rest_of(terminal):
    seen = b""
    # Linux reports the end of a pseudo-terminal as an I/O error
    with contextlib.suppress(OSError):
        while chunk := os.read(terminal, 1 << 16):
            seen += chunk
    return seen.decode(errors="replace")


def test_the_table_grows_and_the_summary_follows(tmp_path):
    write_job(tmp_path)
    go = tmp_path / "go"
    script = {"*": [["metrics", {"step": 1, "reward/mean": 0.125}], ["wait_file", str(go)], ["checkpoint", 10]]}
    with on_terminal(tmp_path, script) as (process, terminal):
        text = read_until(terminal, "0.125")
        assert "tiny" in text and "reward" in text and "step 1/10" in text
        go.touch()
        text = rest_of(terminal)
        assert "tiny: succeeded after 1 of 10 steps" in text
        assert process.wait(TEST_TIMEOUT_SECONDS) == 0


def test_control_c_once_checkpoints_and_stops(tmp_path):
    write_job(tmp_path)
    ready = tmp_path / "ready"
    script = {"*": [["block", 15], STEPPED, ["pid", str(ready)], ["wait_signal", 15], ["checkpoint", 4], ["exit", 76]]}
    with on_terminal(tmp_path, script) as (process, terminal):
        pid_in(ready)
        read_until(terminal, "0.125")
        os.write(terminal, CONTROL_C)
        text = rest_of(terminal)
        assert process.wait(TEST_TIMEOUT_SECONDS) == 76
        assert "stopping after this step or the next, with a checkpoint" in text
        assert "go on       rljob run job.yaml" in text


@pytest.mark.slow
def test_control_c_twice_stops_now(tmp_path):
    write_job(tmp_path)
    ready = tmp_path / "ready"
    with on_terminal(tmp_path, {"*": [["block", 15], STEPPED, ["pid", str(ready)], ["hang"]]}) as (process, terminal):
        worker = pid_in(ready)
        read_until(terminal, "0.125")
        os.write(terminal, CONTROL_C)
        read_until(terminal, "stopping after this step")
        os.write(terminal, CONTROL_C)
        rest_of(terminal)
        assert process.wait(TEST_TIMEOUT_SECONDS) == 130
        assert is_gone(worker)


@pytest.mark.slow
def test_a_closed_terminal_is_a_request_to_stop(tmp_path):
    write_job(tmp_path)
    ready = tmp_path / "ready"
    script = {"*": [["block", 15], STEPPED, ["pid", str(ready)], ["wait_signal", 15], ["checkpoint", 4], ["exit", 76]]}
    with on_terminal(tmp_path, script) as (process, terminal):
        worker = pid_in(ready)
        read_until(terminal, "0.125")
        os.close(terminal)
        assert process.wait(TEST_TIMEOUT_SECONDS) == 76
        wait_for(lambda: is_gone(worker))
