"""What a fork of the guardian does before its first line of user code."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import NoReturn

from rljob_worker.process.lifeline import die_with
from rljob_worker.sandbox.confinement.confine import Confinement, confine
from rljob_worker.sandbox.guardian.framing import Results

REQUESTS, RESULTS, MEMORY = 3, 4, 5
"""Descriptors of the pipes and of shared memory, if it was given some, which with the standard ones are all that a
process has."""
FIRST_FREE = 10


@dataclass(frozen=True, slots=True)
class Beginning:
    """What the worker asks of a process."""

    folder: str | None
    """The process's working directory and temporary folder; None: that of the guardian."""
    environment: Mapping[str, str] | None
    """All its variables; None: those of the guardian."""
    confinement: Confinement | None
    guardian: int
    """Its process id."""
    has_memory: bool = False
    """Whether it gets shared memory."""


def begin(beginning: Beginning, descriptors: Sequence[int], module: ModuleType) -> NoReturn:
    """Become a process of `module`. descriptors: requests, results, the memory if it gets some, perhaps output."""
    code = 1
    try:
        os.setpgid(0, 0)
        die_with(beginning.guardian, signal.SIGKILL)
        _reset_signals()
        _keep_only(descriptors, beginning.has_memory)
        _enter(beginning)
        module.serve(REQUESTS, Results(RESULTS))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def _reset_signals() -> None:
    """SIGINT and SIGTERM mean workers, where Slurm or a terminal sends them to every process; what user code forks
    dies of SIGTERM as ever."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _except_in(os.getpid()))


def _except_in(owner: int) -> Callable[[int, FrameType | None], None]:
    def handle(number: int, _frame: FrameType | None) -> None:
        if os.getpid() != owner:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    return handle


def _keep_only(descriptors: Sequence[int], has_memory: bool) -> None:
    """Pipes and memory at their places, nothing to read from standard input, and no other descriptor."""
    requests, results, *rest = (fcntl.fcntl(item, fcntl.F_DUPFD, FIRST_FREE) for item in descriptors)
    memory, output = (rest[:1], rest[1:]) if has_memory else ([], rest)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for stream in (1, 2):
        if output:
            os.dup2(output[0], stream)
    os.dup2(requests, REQUESTS, inheritable=False)
    os.dup2(results, RESULTS, inheritable=False)
    for descriptor in memory:
        os.dup2(descriptor, MEMORY, inheritable=False)
    os.closerange(RESULTS + 1 + has_memory, os.sysconf("SC_OPEN_MAX"))
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _enter(beginning: Beginning) -> None:
    if beginning.environment is not None:
        os.environ.clear()
        os.environ.update(beginning.environment)
    if beginning.folder is not None:
        os.environ.update(TMPDIR=beginning.folder, HOME=beginning.folder)
        tempfile.tempdir = None  # what the guardian chose for itself
        os.chdir(beginning.folder)
        if beginning.confinement is not None:
            confine(beginning.confinement, beginning.folder)
