"""Writers and readers as processes of this environment, each with a role that `start` makes in it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from planes.rows import Role, act

CONCERNS = {"put": ("writer",)} | dict.fromkeys(("get", "copy", "read", "verify"), ("reader",))
"""Who acts; what is not here concerns all."""


def _work(make: Callable[..., Role], arguments: Sequence[Any], commands: Connection) -> None:
    try:
        role = make(*arguments)
        commands.send("ready")
        while (command := commands.recv()) is not None:
            commands.send(act(role, *command))
    except (EOFError, KeyboardInterrupt):
        return  # the process that controls us is gone


class Team:
    """Processes by what they are: "writer", "reader"."""

    def __init__(self) -> None:
        self._members: list[tuple[str, Connection, BaseProcess]] = []
        self._starting: list[Connection] = []

    def add(self, kind: str, make: Callable[..., Role], *arguments: Any) -> None:
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=_work, args=(make, arguments, theirs), daemon=True)
        process.start()
        theirs.close()
        self._members.append((kind, ours, process))
        self._starting.append(ours)

    def wait_until_ready(self) -> None:
        """Until those that were added have made their roles."""
        while self._starting:
            assert self._starting.pop().recv() == "ready"

    def tell(self, action: str, step: int) -> list[dict[str, Any]]:
        """All of those at once."""
        kinds = CONCERNS.get(action, ("writer", "reader"))
        pipes = [pipe for kind, pipe, _ in self._members if kind in kinds]
        for pipe in pipes:
            pipe.send((action, step))
        return [pipe.recv() for pipe in pipes]

    def processes(self) -> Mapping[str, list[int]]:
        result: dict[str, list[int]] = {}
        for kind, _, process in self._members:
            result.setdefault(kind, []).append(process.pid or 0)
        return result

    def close(self) -> None:
        for _, _, process in self._members:
            process.kill()
            process.join()
