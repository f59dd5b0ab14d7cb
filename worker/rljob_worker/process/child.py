"""A child process: how it is started, watched and ended, and what it writes into its log."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rljob_worker.process.lifeline import dying_with_me

PYTHON = (sys.executable, "-P")
"""Without the current directory on the path: a file there must not stand in for a module of ours."""


def command_of(module: str) -> tuple[str, ...]:
    """The program that runs `module` by itself."""
    return (*PYTHON, "-m", module)


def exit_code(returncode: int) -> int:
    """A shell-style code: death by signal n is 128 + n, as Kubernetes reports it."""
    return returncode if returncode >= 0 else 128 - returncode


class Log:
    """The file with the output of a process, which says there that it is ready and why it ended."""

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self.log = log
        self._ready: dict[str, Any] | None = None

    def ready(self) -> dict[str, Any] | None:
        """The JSON object with a key `ready` that the process prints once it serves; None before that."""
        if self._ready is None:
            self._ready = ready_line(self._text())
        return self._ready

    def last_line(self) -> str:
        """The end of its log, where a program says why it ended."""
        lines = [line for line in self._text().splitlines() if line.strip()]
        said = [line for line in lines if ready_line(f"{line}\n") is None]
        return said[-1] if said else "no last words"

    def _text(self) -> str:
        return self.log.read_text(errors="replace")


class Child:
    """A program that this process started. It leads a session, so that the terminal's Ctrl-C does not reach it."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        output: Path | None = None,
        descriptors: Sequence[int] = (),
        death_signal: signal.Signals | None = None,
        lifeline: bool = False,
    ) -> None:
        """output: file of its standard output and error; None: this process's.  descriptors: that it inherits.

        death_signal: what it gets when this process dies; may be asked for in the main thread only.  lifeline: its
        standard input is a pipe that ends with this process, and at `end_lifeline`.
        """
        with contextlib.ExitStack() as stack:
            file = None if output is None else stack.enter_context(output.open("ab"))
            self._process = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.PIPE if lifeline else subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                pass_fds=descriptors,
                start_new_session=True,
                preexec_fn=None if death_signal is None else dying_with_me(death_signal),
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def returncode(self) -> int | None:
        """As `os.waitstatus_to_exitcode` has it: -9 for SIGKILL. None while it runs."""
        return self._process.poll()

    def has_ended(self) -> bool:
        """Whether it has; it is not collected, so that nobody else gets the number of its group before `kill`."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def code(self) -> int | None:
        """Shell-style exit code, or None while it runs."""
        returncode = self.returncode()
        return None if returncode is None else exit_code(returncode)

    def signal(self, signum: signal.Signals) -> None:
        """Send to this process; what it started is its own business."""
        if self.returncode() is None:
            self._process.send_signal(signum)

    def kill(self) -> None:
        """Kill its process group and collect it."""
        signal_group(self.pid, signal.SIGKILL)
        self._process.wait()
        self.end_lifeline()

    def wait(self) -> None:
        """Until it has ended."""
        self._process.wait()

    def end_lifeline(self, timeout_seconds: float = 0.0) -> None:
        """Say that it is not wanted any more, and wait so long for its end at most."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        if timeout_seconds:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_seconds)


class LoggedChild(Child, Log):
    """A program with a name and a log of its own."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        *,
        lifeline_fd: int,
        death_signal: signal.Signals = signal.SIGHUP,
    ) -> None:
        Log.__init__(self, name, log)
        Child.__init__(self, command, environment, output=log, descriptors=(lifeline_fd,), death_signal=death_signal)


def signal_group(pid: int, signum: signal.Signals) -> None:
    """Signal a process and what it started that stayed in its process group; nobody where all of them are gone."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signum)


def ready_line(text: str) -> dict[str, Any] | None:
    """The first whole line of `text` that is a JSON object with the key `ready`."""
    for line in text.splitlines(keepends=True):
        if line.endswith("\n") and line.startswith("{"):
            with contextlib.suppress(ValueError):
                result = json.loads(line)
                if "ready" in result:
                    return dict(result)
    return None
