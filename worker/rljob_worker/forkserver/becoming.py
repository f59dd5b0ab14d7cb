"""From a fresh fork to the process that was asked for."""

import io
import os
import random
import runpy
import signal
import sys
import traceback
from collections.abc import Mapping
from typing import Any

from rljob_worker.forkserver.appearance import appear_as
from rljob_worker.forkserver.environment import search_path
from rljob_worker.forkserver.request import WorkerRequest
from rljob_worker.process.stop_requests import release_signals

RESTORED = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python ignores these; programs expect them to be as usual."""


def become(request: WorkerRequest, runs_here: bool) -> int:
    """Take the request's output, environment and place, and run its module in this process, or as a fresh program.

    Returns the exit status of a module.
    """
    os.setpgid(0, 0)
    _take_output(request)
    environment = {**request.environment, request.pipe_variable: str(request.pipe)}
    if not runs_here:
        os.set_inheritable(request.pipe, True)
        return _execute(request.command, environment)
    take_environment(environment)
    appear_as(request.command, environment)
    return _run(request.module)


def _execute(command: tuple[str, ...], environment: Mapping[str, str]) -> int:
    """Returns only when there is no such program."""
    release_signals()
    for each in RESTORED:
        signal.signal(each, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        print(f"cannot start {command[0]}: {error.strerror}", file=sys.stderr)
        return 127


def take_environment(environment: Mapping[str, str]) -> None:
    """Replace this process's environment and module path by those that a fresh process would have."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = search_path(sys.path, before, environment)


def _take_output(request: WorkerRequest) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (request.output, 1), (request.errors, 2)):
        os.dup2(source, target)
        os.close(source)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(write_through=True)  # a fork that is killed has nothing left to say


def _run(module: str) -> int:
    """As `python -m module` would; its exit status."""
    _draw_anew()
    sys.argv = [module]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return _status(end.code)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _status(code: Any) -> int:
    if code is None or isinstance(code, int):
        return code or 0
    print(code, file=sys.stderr)
    return 1


def _draw_anew() -> None:
    """Forks share the state of numpy's global generator; fresh processes would each have drawn their own."""
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(random.SystemRandom().getrandbits(32))
