"""One function that a job names, as it is sent to a process that imports nothing else. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

REWARD_ARGUMENTS = ("row",)

SHIPPED = "rljob_worker.rewards:"


Kind = Literal["function", "run", "tool", "environment", "simulator"]
"""`run` plays conversations, in which tools and environments are called; `simulator` makes environments of episodes."""


class ImportConfinement(NamedTuple):
    """How a process is confined that imports functions: as the processes of the job are that call them."""

    mode: Literal["Required", "Preferred"]
    environment_variables: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()


class FunctionReference(NamedTuple):
    """One function; a value of JSON, for it goes to a process of its own."""

    path: str
    """Where the job names it; its options are beside that."""
    owner: str
    """What a message calls it; of a tool or environment, its name."""
    run: str
    arguments: tuple[str, ...]
    options: dict[str, Any]
    asks_service: bool = False
    """Whether it is a reward that is given a service besides."""
    columns: tuple[str, ...] = ()
    """What the rows of a reward have of the data."""
    kind: Kind = "function"
    confinement: ImportConfinement | None = None
    """None: it is imported as in a worker."""
    variables: dict[str, str] = {}
    """What it finds in its environment besides."""

    @classmethod
    def from_json(cls, fields: Sequence[Any]) -> FunctionReference:
        reference = cls(*fields)
        if reference.confinement is None:
            return reference
        return reference._replace(confinement=ImportConfinement(*reference.confinement))

    @property
    def options_path(self) -> str:
        return f"{self.path.removesuffix('.run')}.options"


class RewardTrial(NamedTuple):
    """A reward and the rows that it is called with; a value of JSON."""

    owner: str
    run: str
    options: dict[str, Any]
    rows: list[dict[str, Any]]
    limit_seconds: float
    """The time limit of one call."""
