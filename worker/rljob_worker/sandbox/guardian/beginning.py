"""What a fork of the guardian does before its first line of user code."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FrameType, ModuleType
from typing import NoReturn

from rljob_worker.process.lifeline import die_with, end_group_with
from rljob_worker.sandbox.confinement.confine import Confinement, confine, confine_files
from rljob_worker.sandbox.guardian.copies import serve_copies
from rljob_worker.sandbox.guardian.framing import Results

REQUESTS, RESULTS, MEMORY = 3, 4, 5
"""Descriptors of the pipes and of shared memory, if it was given some, which with the standard ones are all that a
process has. One that is copied has a socket instead of memory, one without a guardian its lifeline."""
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
    is_copied: bool = False
    """Whether it loads user code and is copied then. It may write in the folder above its own, where copies have
    theirs."""


def begin(beginning: Beginning, descriptors: Sequence[int], module: ModuleType) -> NoReturn:
    """Become a process of `module`. descriptors: requests, results, the memory or the socket if it gets one, perhaps
    output."""

    def run() -> None:
        os.setpgid(0, 0)
        die_with(beginning.guardian, signal.SIGKILL)
        _reset_signals()
        _keep_only(descriptors, beginning.has_memory or beginning.is_copied)
        _enter(beginning)
        if beginning.is_copied:
            serve = module.load(REQUESTS, Results(RESULTS))
            serve_copies(lambda folder, pipes: _begin_copy(replace(beginning, folder=folder), pipes, serve))
        else:
            module.serve(REQUESTS, Results(RESULTS))

    _run_to_the_end(run)


def begin_alone(requests: int, results: int, serve: Callable[[int, Results], None]) -> NoReturn:
    """Become a process that no guardian forks, a program that leads a session: its group is killed when the pipe ends
    that is its standard input."""

    def run() -> None:
        end_group_with(0)
        _reset_signals()
        _keep_only([requests, results, 0], has_memory=True)
        serve(REQUESTS, Results(RESULTS))

    _run_to_the_end(run)


def _begin_copy(beginning: Beginning, descriptors: Sequence[int], serve: Callable[[int, Results], None]) -> NoReturn:
    """Become a copy of this process, which leads a group already."""

    def run() -> None:
        die_with(beginning.guardian, signal.SIGKILL)
        signal.signal(signal.SIGTERM, _except_in(os.getpid()))
        _keep_only(descriptors, has_memory=False)
        _enter_folder(beginning)
        if beginning.confinement is not None:
            assert beginning.folder is not None
            confine_files(beginning.confinement, beginning.folder)
        serve(REQUESTS, Results(RESULTS))

    _run_to_the_end(run)


def _run_to_the_end(run: Callable[[], None]) -> NoReturn:
    code = 1
    try:
        run()
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
        _enter_folder(beginning)
        if beginning.confinement is not None:
            writable = os.path.dirname(beginning.folder) if beginning.is_copied else beginning.folder
            confine(beginning.confinement, writable)


def _enter_folder(beginning: Beginning) -> None:
    assert beginning.folder is not None
    os.environ.update(TMPDIR=beginning.folder, HOME=beginning.folder)
    tempfile.tempdir = None  # what the guardian chose for itself
    os.chdir(beginning.folder)
