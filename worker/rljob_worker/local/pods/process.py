"""One child of the supervisor: a data buffer or a launcher, with its log file."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rljob_worker.process.child import exit_code
from rljob_worker.process.lifeline import dying_with_me


class LocalProcess:
    """A process in its own session, so that the terminal's Ctrl-C reaches the supervisor alone."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        *,
        lifeline: int,
        death_signal: signal.Signals = signal.SIGHUP,
    ) -> None:
        """Start it. It gets `death_signal` when this process dies; standard output and error go to `log`."""
        self.name = name
        self.log = log
        self._ready: dict[str, Any] | None = None
        with log.open("ab") as output:
            self._popen = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(lifeline,),
                start_new_session=True,
                preexec_fn=dying_with_me(death_signal),
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    def code(self) -> int | None:
        """Shell-style exit code, or None while it runs."""
        returncode = self._popen.poll()
        return None if returncode is None else exit_code(returncode)

    def signal(self, signum: signal.Signals) -> None:
        """Send to this process; what it started is its own business."""
        if self.code() is None:
            self._popen.send_signal(signum)

    def kill(self) -> None:
        """Kill its process group and collect it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._popen.wait()

    def ready(self) -> dict[str, Any] | None:
        """The JSON object with a key `ready` that the process prints once it serves; None before that."""
        if self._ready is None:
            self._ready = ready_line(self.log.read_text(errors="replace"))
        return self._ready

    def last_line(self) -> str:
        """The end of its log, where a program says why it ended."""
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        said = [line for line in lines if ready_line(f"{line}\n") is None]
        return said[-1] if said else "no last words"


def ready_line(text: str) -> dict[str, Any] | None:
    """The first whole line of `text` that is a JSON object with the key `ready`."""
    for line in text.splitlines(keepends=True):
        if line.endswith("\n") and line.startswith("{"):
            with contextlib.suppress(ValueError):
                found = json.loads(line)
                if "ready" in found:
                    return dict(found)
    return None
