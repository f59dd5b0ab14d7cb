"""Commands of ours as processes of their own, forked from one warm interpreter: tests of what a process says, returns
and survives need not import pydantic and pyarrow each time. What is said of imports themselves needs a fresh one."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import select
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from rljob_worker.forkserver.client import ForkServer
from rljob_worker.forkserver.forking import ForkRequest
from rljob_worker.process.child import command_of
from rljob_worker.tests.session_root import TEST_MARK
from rljob_worker.tests.shared_root import shared_root

COMMAND = "RLJOB_TEST_COMMAND"
"""The variable that has a command in JSON."""
INPUT = "RLJOB_TEST_INPUT"
"""The variable that has the descriptor of its standard input."""

PRELOAD = (
    "rljob_worker.cli.launch",
    "rljob_worker.cli.new.writing",
    "rljob_worker.cli.output",
    "rljob_worker.cli.plan.show",
    "rljob_worker.cli.run",
    "rljob_worker.cli.status",
    "rljob_worker.cli.validate",
    "rljob_worker.databuffer.server.process",
    "rljob_worker.supervision.tests.run_process",
    "rljob_worker.rehearsal.rehearse",
    "rljob_worker.rewards.loading",
    "rljob_worker.rewards.reads",
    "rljob_worker.tests.warm",
)
"""None that is run as `__main__`, and not huggingface_hub, which reads its variables when it is imported. The last one
names the server in a list of processes."""


class WarmProcess:
    """A running command, with what tests and a rehearsal use of `subprocess.Popen`."""

    def __init__(
        self,
        module: str,
        *arguments: str,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
        stdin: int | None = None,
        stdout: int = 1,
        stderr: int = 2,
    ) -> None:
        """Standard input is empty without a descriptor. All descriptors stay the caller's to close."""
        self.returncode: int | None = None
        self._name = f"command-{next(_NUMBERS)}"
        asked = {"module": module, "arguments": arguments, "folder": str(folder or Path.cwd())}
        with open(os.devnull) as nothing:
            request = ForkRequest(
                name=self._name,
                module="rljob_worker.tests.warm_command",
                command=command_of("rljob_worker.tests.warm_command"),
                environment={**(os.environ if environment is None else environment), COMMAND: json.dumps(asked)},
                pipe_variable=INPUT,
                output=stdout,
                errors=stderr,
                pipe=nothing.fileno() if stdin is None else stdin,
            )
            _server().ask(request)
        while self._name not in _PIDS:
            _hear()
        self.pid = _PIDS.pop(self._name)

    def poll(self) -> int | None:
        while self._name not in _ENDED and select.select([_server()], [], [], 0.0)[0]:
            _hear()
        self.returncode = _ENDED.get(self._name)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Raises TimeoutExpired where nothing at all happens for so long."""
        while (code := self.poll()) is None:
            if not select.select([_server()], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self._name, timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run_warm(
    module: str,
    *arguments: str,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """What a command returns and says."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        out, err = output.fileno(), errors.fileno()
        process = WarmProcess(module, *arguments, folder=folder, environment=environment, stdout=out, stderr=err)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess([module, *arguments], code, output.read(), errors.read())


_NUMBERS = itertools.count()
_PIDS: dict[str, int] = {}
_ENDED: dict[str, int] = {}


@cache
def _server() -> ForkServer:
    """The connection of this process, with which it ends."""
    # a fork shows its own mark in this place
    marked = os.environ | {TEST_MARK: "0" * 16}
    _, socket = shared_root("commands", {}, marked, PRELOAD)
    server = ForkServer(socket, any_environment=True)
    atexit.register(server.close)
    return server


def _hear() -> None:
    """The next that the server reports of its forks."""
    message = _server().receive()
    assert message is not None, "the warm interpreter is gone"
    if "forked" in message:
        _PIDS[message["forked"]] = message["pid"]
    else:
        _ENDED[message["ended"]] = message["status"]
