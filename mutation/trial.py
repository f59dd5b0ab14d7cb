"""Run a function in a fork of this process, with a limit; nothing that it started is left."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_prctl = ctypes.CDLL(None, use_errno=True).prctl


@dataclass(frozen=True)
class TrialOutcome:
    """How a trial ended."""

    code: int | None
    """What the function returned; negative for a signal, None when the time was up."""
    seconds: float


def adopt() -> None:
    """From now on orphans among this process's descendants become its children, so that they can be ended.

    The process itself ends with the one that started it.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def trial(run: Callable[[], int], log: Path, seconds: float) -> TrialOutcome:
    """`run()` in a fork that writes to `log`."""
    sys.stdout.flush()
    sys.stderr.flush()
    begin = time.monotonic()
    child = os.fork()
    if child == 0:
        _run_and_exit(run, log)
    code = _wait(child, seconds)
    _end_children()
    return TrialOutcome(code, time.monotonic() - begin)


def _run_and_exit(run: Callable[[], int], log: Path) -> None:
    code = 70
    try:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDONLY)
        to = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        for descriptor, source in ((0, nothing), (1, to), (2, to)):
            os.dup2(source, descriptor)
        code = run()
        sys.stdout.flush()
    finally:
        os._exit(code)


def _wait(child: int, seconds: float) -> int | None:
    descriptor = os.pidfd_open(child)
    try:
        if not select.select([descriptor], [], [], seconds)[0]:
            return None
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        os.close(descriptor)


def _end_children() -> None:
    """Kill what is left; what a killed process had started falls to us and is next."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    while left := children.read_text().split():
        for pid in map(int, left):
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
