"""A caller's side for tests: asks a real root for scripted processes and hears from them."""

import json
import os
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_worker.forkserver.client import ForkServer, Root
from rljob_worker.forkserver.forking import ForkRequest
from rljob_worker.process.child import command_of

LIGHT = ("rljob_worker.forkserver.tests.light",)
THREADED = ("rljob_worker.forkserver.tests.light", "rljob_worker.forkserver.tests.threaded")
ENDLESS = ("rljob_worker.forkserver.tests.endless",)
SCRIPTED = "rljob_worker.forkserver.tests.scripted"


class OwnServer(ForkServer):
    """A root of this process, and the connection to it, which forks for any variables of its requests."""

    def __init__(self, environment: Mapping[str, str], preload: tuple[str, ...]) -> None:
        self._stack = ExitStack()
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="rljob-")))
        self.root = self._stack.enter_context(closing(Root(environment, preload, folder / "root.sock", None)))
        super().__init__(self.root.path, any_environment=True)

    @property
    def pid(self) -> int:
        return self.root.pid

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        super().close()
        self._stack.close()


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
    """`env`: of the process, besides this one's; SCRIPT is what it does. `program` replaces that of the module."""
    with requested(folder, name, module, program, **env) as (request, asked):
        server.ask(request)
    return asked


@contextmanager
def requested(
    folder: Path, name: str, module: str = SCRIPTED, program: tuple[str, ...] = (), **env: Any
) -> Iterator[tuple[ForkRequest, Asked]]:
    """A request, whose descriptors are closed at the end, and how to read what comes of it."""
    if "SCRIPT" in env:
        env["RLJOB_TEST_SCRIPT"] = json.dumps(env.pop("SCRIPT"))
    reports, pipe = os.pipe()
    log = folder / f"{name}.log"
    with log.open("ab") as output:
        request = ForkRequest(
            name=name,
            module=module,
            command=program or command_of(module),
            environment={**plain_environment(), **env},
            pipe_variable="PIPE",
            output=output.fileno(),
            errors=output.fileno(),
            pipe=pipe,
            folder=os.getcwd(),
        )
        yield request, Asked(name, log, reports)
    os.close(pipe)


def ended(server: ForkServer) -> tuple[str, int]:
    """Name and status of the next process that ends."""
    while (message := server.receive()) is not None:
        if "ended" in message:
            return message["ended"], message["status"]
    raise AssertionError("the fork server is gone")


def plain_environment() -> dict[str, str]:
    """This process's, without what pytest changes while a test goes on."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "RLJOB_"))}
