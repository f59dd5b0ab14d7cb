"""A fork of this process that becomes another one: asked for by a request, and on its way there."""

from __future__ import annotations

import contextlib
import io
import os
import random
import runpy
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Self

from rljob_worker.forkserver.environment import search_path, shadowed
from rljob_worker.forkserver.process_title import appear_as
from rljob_worker.forkserver.wire import Message
from rljob_worker.process.lifeline import die_with
from rljob_worker.process.stop_requests import HELD_BACK, release_signals

RESTORED = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python ignores these; programs expect them to be as usual."""
HANDLED: Mapping[signal.Signals, Any] = {
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
    signal.SIGCHLD: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
}
"""A process that forks has handlers of its own for these; its forks begin with the usual ones."""


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """One process: `module` runs in a fork; where there is none, or forks are not safe, `command` runs by itself.

    `output`, `errors` and `pipe` are descriptors; the variable `pipe_variable` gives the process its number of the
    last one.
    """

    name: str
    module: str
    command: tuple[str, ...]
    environment: dict[str, str]
    pipe_variable: str
    output: int
    errors: int
    pipe: int
    folder: str = "."
    """The working directory."""

    def message(self) -> Message:
        return {
            "name": self.name,
            "module": self.module,
            "command": self.command,
            "environment": self.environment,
            "pipe_variable": self.pipe_variable,
            "folder": self.folder,
        }

    @property
    def descriptors(self) -> tuple[int, int, int]:
        return self.output, self.errors, self.pipe

    @classmethod
    def from_message(cls, message: Message, descriptors: Sequence[int]) -> Self:
        output, errors, pipe = descriptors
        command = tuple(message.pop("command"))
        return cls(command=command, output=output, errors=errors, pipe=pipe, **message)


def fork(request: ForkRequest, forks: bool, drop: Sequence[Callable[[], object]] = ()) -> int:
    """Start the process that is asked for, which dies with this one; its process id. Raises OSError where there is no
    process or no memory left.

    forks: whether its module may run in a fork.  drop: called in the fork, rids it of what is this process's alone.
    """
    parent, runs_here = os.getpid(), forks and _runs_here(request)
    flush_output()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
    try:
        pid = os.fork()
        if pid == 0:
            leave_as(lambda: _become(parent, request, drop, runs_here))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    with contextlib.suppress(OSError):  # it has done so itself by now
        os.setpgid(pid, pid)
    return pid


def take_environment(environment: Mapping[str, str]) -> None:
    """Replace this process's environment and module path by those that a fresh process would have."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = search_path(sys.path, before, environment)


def leave_as(work: Callable[[], int]) -> NoReturn:
    """End this process with what `work` returns, or with 1 and a traceback; without the parent's handlers of exits."""
    code = 1
    try:
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        flush_output()
        os._exit(code)


def flush_output() -> None:
    """Also before a fork, in which what is left in a buffer would be written again."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # a full disk, a closed one, none
            stream.flush()


def _runs_here(request: ForkRequest) -> bool:
    names = shadowed(request.environment, sys.modules) if request.module else []
    if names:
        said = f"{request.name} imports for itself: PYTHONPATH has its own {', '.join(names)}"
        print(f"fork server: {said}", file=sys.stderr, flush=True)
    return bool(request.module) and not names


def _become(parent: int, request: ForkRequest, drop: Sequence[Callable[[], object]], runs_here: bool) -> int:
    """Take the request's output, environment and place, and run its module in this process, or as a fresh program.

    Returns the exit status of a module.
    """
    die_with(parent, signal.SIGKILL)
    signal.set_wakeup_fd(-1)
    for number, handler in HANDLED.items():
        signal.signal(number, handler)
    for call in drop:
        call()
    os.setpgid(0, 0)
    os.chdir(request.folder)
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
    for item in RESTORED:
        signal.signal(item, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        print(f"cannot start {command[0]}: {error.strerror}", file=sys.stderr)
        return 127


def _take_output(request: ForkRequest) -> None:
    """Descriptors of the request below 3 are the parent's own output, and stay."""
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (request.output, 1), (request.errors, 2)):
        os.dup2(source, target)
    for source in {null, request.output, request.errors} - {0, 1, 2}:
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
