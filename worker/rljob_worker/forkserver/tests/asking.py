"""A launcher's side for tests: asks a real fork server for scripted processes and hears from them."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_worker.forkserver.client import ForkServer
from rljob_worker.forkserver.request import WorkerRequest, command_of

LIGHT = ("rljob_worker.forkserver.tests.light",)
THREADED = ("rljob_worker.forkserver.tests.light", "rljob_worker.forkserver.tests.threaded")
SCRIPTED = "rljob_worker.forkserver.tests.scripted"


@dataclass
class Asked:
    """A process that a server was asked for; output and errors go to `log`."""

    name: str
    log: Path
    reports: int
    """Read end of the process's pipe."""

    def report(self) -> dict[str, Any]:
        """What the scripted module says of itself."""
        line = b""
        while not line.endswith(b"\n"):
            part = os.read(self.reports, 1 << 16)
            assert part, f"{self.name} ended without a report: {self.log.read_text()}"
            line += part
        return dict(json.loads(line))


def ask(
    server: ForkServer,
    folder: Path,
    name: str = "worker-0",
    module: str = SCRIPTED,
    program: tuple[str, ...] = (),
    **env: Any,
) -> Asked:
    """`env`: of the process, beside this one's; SCRIPT is written as JSON. `program` replaces that of the module."""
    if "SCRIPT" in env:
        env["SCRIPT"] = json.dumps(env["SCRIPT"])
    reports, pipe = os.pipe()
    log = folder / f"{name}.log"
    with log.open("ab") as output:
        request = WorkerRequest(
            name=name,
            module=module,
            command=program or command_of(module),
            environment={**plain_environment(), **env},
            pipe_variable="PIPE",
            output=output.fileno(),
            errors=output.fileno(),
            pipe=pipe,
        )
        server.ask(request)
    os.close(pipe)
    return Asked(name, log, reports)


def ended(server: ForkServer) -> tuple[str, int]:
    """Name and status of the next process that ends."""
    while (message := server.receive()) is not None:
        if "ended" in message:
            return message["ended"], message["status"]
    raise AssertionError("the fork server is gone")


def plain_environment() -> dict[str, str]:
    """This process's, without what pytest changes while a test goes on."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "RLJOB_"))}
