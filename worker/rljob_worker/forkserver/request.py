"""What a launcher asks its fork server for."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from rljob_worker.forkserver.wire import Message

PYTHON = (sys.executable, "-P")
"""Without the current directory on the path: a file there must not stand in for a module of ours."""


def command_of(module: str) -> tuple[str, ...]:
    """The program that runs `module` by itself."""
    return (*PYTHON, "-m", module)


@dataclass(frozen=True, slots=True)
class WorkerRequest:
    """One process: `module` runs in a fork; where there is none, or forks are not safe, `command` runs by itself.

    `output`, `errors` and `pipe` are descriptors; the variable `pipe_variable` tells the process its number of the
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

    def message(self) -> Message:
        return {
            "name": self.name,
            "module": self.module,
            "command": self.command,
            "environment": self.environment,
            "pipe_variable": self.pipe_variable,
        }

    @property
    def descriptors(self) -> tuple[int, int, int]:
        return self.output, self.errors, self.pipe

    @classmethod
    def from_message(cls, message: Message, descriptors: Sequence[int]) -> Self:
        output, errors, pipe = descriptors
        command = tuple(message.pop("command"))
        return cls(command=command, output=output, errors=errors, pipe=pipe, **message)
