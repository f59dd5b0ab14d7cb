"""Nobody outlives the process that started it.

Three mechanisms, because each has a hole: the kernel's parent-death signal reaches one process and not its children;
the end of a pipe reaches everybody who watches it, which a stuck process does not; the kernel's signal at that end
reaches a whole process group, stuck or not, which cannot clean up.
"""

import contextlib
import ctypes
import fcntl
import os
import select
import signal
import sys
from collections.abc import Callable, Container

PR_SET_PDEATHSIG = 1
F_SETSIG = 10
"""Chooses the signal which tells that something happened to a descriptor (linux/fcntl.h)."""

LIFELINE_FD = "RLJOB_LIFELINE_FD"
"""Environment variable: a pipe's read end that nobody writes to; its end of file says that the supervisor is gone."""

# loaded before any fork: a child between fork and exec must not take the import lock
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def dying_with_me(signum: signal.Signals) -> Callable[[], None]:
    """A `preexec_fn` that sends `signum` to the child when this process dies, however it dies.

    Must be used from the main thread: the kernel watches the thread that forked.
    """
    parent = os.getpid()
    return lambda: die_with(parent, signum)


def die_with(parent: int, signum: signal.Signals) -> None:
    """In a child of `parent`: get `signum` when it dies; end at once if it already has."""
    if _libc is None:
        return
    _libc.prctl(PR_SET_PDEATHSIG, int(signum), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(128 + int(signum))


def end_group_with(lifeline: int) -> None:
    """Have the kernel kill this process's group once nobody holds the write end of a pipe, in which nobody writes; as
    long as somebody has the read end, `lifeline`, open."""
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC)
    if select.select([lifeline], [], [], 0)[0]:  # it has ended before
        os.killpg(0, signal.SIGKILL)


def ignore_what_means_workers() -> None:
    """Slurm and systemd send SIGTERM and SIGINT to every process of a step or unit, and the workers' last step needs
    the others. What has a supervisor ends by its word, SIGHUP, or with it."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def collect_orphans(own: Container[int]) -> None:
    """Take leave of inherited children that have ended, as process 1 of a container has them; `own` are left to those
    who started them."""
    with contextlib.suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid in own:
                return
            os.waitpid(ended.si_pid, 0)


def lifeline_fd() -> int | None:
    """The inherited read end, or None in a container, which dies as a whole."""
    value = os.environ.get(LIFELINE_FD)
    return int(value) if value else None
