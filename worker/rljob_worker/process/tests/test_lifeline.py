"""Groups of processes that end with a pipe."""

import signal
import subprocess
import sys
from contextlib import contextmanager

from rljob_worker.process.child import signal_group
from rljob_worker.tests.waiting import is_gone, wait_for

GROUP = """
import os, re, signal, subprocess
from rljob_worker.process.lifeline import end_group_with
end_group_with(0)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO, signal.SIGTERM, signal.SIGHUP])
if not os.fork():
    orphan = os.fork()
    if not orphan:
        signal.pause()
    print(os.getpid(), orphan, os.getppid(), subprocess.Popen(["sleep", "1000"]).pid, flush=True)
    os._exit(0)
os.wait()
re.fullmatch(r"(a+)+b", "a" * 60)  # holds the interpreter: no thread and no handler gets a turn
"""


@contextmanager
def group(stdin=subprocess.PIPE):
    command = [sys.executable, "-c", GROUP]
    with subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, text=True, start_new_session=True) as leader:
        try:
            yield leader
        finally:
            signal_group(leader.pid, signal.SIGKILL)


def test_a_group_is_killed_when_its_pipe_ends_also_who_is_stuck_or_has_lost_its_parent():
    with group() as leader:
        ended, *living = map(int, leader.stdout.readline().split())
        wait_for(lambda: is_gone(ended))
        assert leader.poll() is None and not any(map(is_gone, living))
        leader.stdin.close()
        assert wait_for(leader.poll) == -signal.SIGKILL
        wait_for(lambda: all(map(is_gone, living)))


def test_a_group_whose_pipe_has_ended_does_not_begin():
    with group(subprocess.DEVNULL) as leader:
        assert wait_for(leader.poll) == -signal.SIGKILL and leader.stdout.read() == ""
