"""Processes of a guardian, and what they inherit."""

import os
import signal
import subprocess
from contextlib import contextmanager
from subprocess import PIPE

from rljob_worker.sandbox.guardian.environment import bounded_environment, child_environment
from rljob_worker.sandbox.guardian.guarding import lead_own_group
from rljob_worker.sandbox.guardian.user_processes import Guardian, ending
from rljob_worker.sandbox.tests.calling import HERE
from rljob_worker.tests.waiting import children_of, wait_for

HELLO = {"targets": {"own_pid": {"run": "user_tools:own_pid", "options": {}}}}
CALL = {"call": 1, "session": "s", "target": "own_pid", "method": None, "arguments": {}, "key": "", "output": 100}


@contextmanager
def guarding():
    guardian = Guardian("rljob_worker.sandbox.calls.serving", child_environment([HERE]))
    try:
        yield guardian
    finally:
        guardian.close()


def received(guardian, process):
    guardian.flush()
    guardian.receive()
    return process.receive()


def test_a_message_leaves_when_it_is_sent():
    with guarding() as guardian:
        process = guardian.start(HELLO)
        assert not process.has_unsent
        assert wait_for(process.receive) == [{"ready": {"own_pid": False}, "refused": {}}]


def test_what_is_written_of_a_killed_process_is_forgotten():
    with guarding() as guardian:
        process = guardian.start(HELLO)
        wait_for(process.receive)
        process.send(CALL)
        (answer,) = wait_for(process.receive)
        os.kill(answer["value"], signal.SIGKILL)
        wait_for(lambda: guardian.receive())
        process.send({"rows": "x" * (1 << 20)})
        assert wait_for(lambda: not process.has_unsent or process.flush()), "nobody reads it any longer"
        assert process.receive() == [{"died": -signal.SIGKILL}]


def test_a_process_that_is_not_wanted_is_killed_and_reported():
    with guarding() as guardian:
        process, other = guardian.start(HELLO), guardian.start(HELLO)
        process.kill()
        process.kill()
        assert wait_for(lambda: {"died": -signal.SIGKILL} in received(guardian, process))
        assert wait_for(lambda: received(guardian, other)) and other.returncode is None


def test_a_copy_that_is_not_wanted_any_more_before_it_is_there_is_killed():
    with guarding() as guardian:
        copied = guardian.start(HELLO, {"folder": True, "copied": True})
        (pid,) = wait_for(lambda: children_of(guardian.pid))
        os.kill(pid, signal.SIGSTOP)
        unwanted = guardian.start(HELLO, {"folder": True, "copy_of": copied.number})
        unwanted.kill()
        # it answers once the guardian has heard that the other is not wanted
        later = guardian.start(HELLO)
        wait_for(lambda: received(guardian, later))
        assert unwanted.returncode is None
        os.kill(pid, signal.SIGCONT)
        assert wait_for(lambda: {"died": -signal.SIGKILL} in received(guardian, unwanted))


def test_endings_are_named():
    assert [ending(code) for code in (-9, 3, None)] == ["signal SIGKILL", "exit code 3", "no exit code yet"]


def test_numeric_libraries_have_one_thread_each_unless_the_user_says_otherwise(monkeypatch, tmp_path):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "4")
    result = child_environment([tmp_path, tmp_path])
    assert (result["OMP_NUM_THREADS"], result["OPENBLAS_NUM_THREADS"]) == ("1", "4")
    assert result["PYTHONPATH"].split(os.pathsep)[0] == str(tmp_path)
    assert result["PYTHONPATH"].split(os.pathsep).count(str(tmp_path)) == 1
    monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    assert child_environment([])["OPENBLAS_NUM_THREADS"] == "1"


def test_a_bounded_environment_has_what_programs_need_and_what_is_named():
    worker = {"PATH": "/bin", "LC_ALL": "C", "TOKEN": "a", "WANTED": "b"}
    result = bounded_environment([], ["WANTED", "ABSENT"], worker)
    assert {name: result.get(name) for name in ("PATH", "LC_ALL", "TOKEN", "WANTED", "ABSENT")} == {
        "PATH": "/bin",
        "LC_ALL": "C",
        "TOKEN": None,
        "WANTED": "b",
        "ABSENT": None,
    }


def test_a_child_that_has_begun_its_program_leads_its_group_already():
    # the kernel says EACCES of a child that has called exec; its output says that it has
    with subprocess.Popen(["cat"], stdin=PIPE, stdout=PIPE, process_group=0) as child:
        assert child.stdin and child.stdout
        child.stdin.write(b"begun\n")
        child.stdin.flush()
        assert child.stdout.readline() == b"begun\n"
        lead_own_group(child.pid)
        assert os.getpgid(child.pid) == child.pid
