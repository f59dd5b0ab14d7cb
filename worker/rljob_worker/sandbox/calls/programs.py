"""Programs that run beside a worker and answer it on their standard output, confined and limited as calls are."""

from __future__ import annotations

import os
import select
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from rljob_worker.sandbox.confinement.confine import (
    Confinement,
    ConfinementMode,
    check_confinement,
    check_readable,
    readable_paths,
)
from rljob_worker.sandbox.confinement.proxy import Proxy, network_places
from rljob_worker.sandbox.guardian.environment import bounded_environment
from rljob_worker.sandbox.guardian.framing import Message
from rljob_worker.sandbox.guardian.user_processes import Guardian, ending

ENDING_SECONDS = 0.2
"""How long to wait for the guardian's report once a program has closed its output."""


@dataclass(frozen=True, slots=True)
class ProgramSettings:
    """A program, and what it may do and use."""

    command: tuple[str, ...]
    """Program and arguments; its working directory is that of the worker."""
    confinement: ConfinementMode
    memory_bytes: int
    processes: int
    """Processes and threads, with all that it starts."""
    network: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    """Names of variables that it sees, besides those that programs need to run."""


class Program:
    """A running program. `close` kills it with everything that it started."""

    def __init__(
        self,
        owner: str,
        settings: ProgramSettings,
        variables: Mapping[str, str],
        pythonpath: Sequence[str | os.PathLike[str]] = (),
    ) -> None:
        """variables: of the worker. Raises FileNotFoundError: there is no such program; InvalidJob, which begins with
        `owner`: what this machine cannot confine, data that is not there, a place of the network that is none."""
        check_confinement(owner, settings.confinement)
        check_readable(owner, settings.readable)
        path = shutil.which(settings.command[0], path=variables.get("PATH"))
        if path is None:
            raise FileNotFoundError(f"there is no program {settings.command[0]!r}")
        places = network_places(owner, settings.network)
        self._proxy = Proxy(places) if places and settings.confinement != "Off" else None
        environment = bounded_environment(pythonpath, settings.environment, variables)
        if self._proxy is not None:
            environment |= self._proxy.environment
        self._guardian = Guardian("rljob_worker.sandbox.guardian.program", environment)
        hello = {"command": list(settings.command), "folder": os.getcwd()}
        self._process = self._guardian.start(hello, self._started(settings, path))
        self.input, self.output = self._process.requests, self._process.results
        """Descriptors, which do not block."""

    def _started(self, settings: ProgramSettings, path: str) -> Message:
        """As `guarding` starts it."""
        start: Message = {"folder": True, "limits": (settings.memory_bytes, settings.processes)}
        if settings.confinement != "Off":
            port = None if self._proxy is None else self._proxy.port
            readable = readable_paths([path, os.path.realpath(path), *settings.readable])
            start["confinement"] = asdict(Confinement(settings.confinement, settings.memory_bytes, port, readable))
        return start

    def why_ended(self) -> str | None:
        """How it ended, or what the guardian killed it for; None while it runs."""
        if self._process.returncode is None and select.select([self._guardian], [], [], ENDING_SECONDS)[0]:
            self._guardian.receive()
        if self._process.returncode is None:
            return None
        return self._process.killed_for[1] if self._process.killed_for else ending(self._process.returncode)

    def close(self) -> None:
        """Kill it, and wait until it is gone."""
        self._guardian.close()
        if self._proxy is not None:
            self._proxy.close()
