"""One function that a job names, as it is sent to a process that imports nothing else. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

REWARD_ARGUMENTS = ("row",)

SHIPPED = "rljob_worker.rewards:"


class FunctionReference(NamedTuple):
    """One function; a value of JSON, for it goes to a process of its own."""

    path: str
    """Where the job names it; its options are beside that."""
    owner: str
    """What a message calls it."""
    run: str
    arguments: tuple[str, ...]
    options: dict[str, Any]
    asks_service: bool = False
    """Whether it is a reward that is given a service besides."""
    columns: tuple[str, ...] = ()
    """What the rows of a reward have of the data."""

    @property
    def options_path(self) -> str:
        return f"{self.path.removesuffix('.run')}.options"
