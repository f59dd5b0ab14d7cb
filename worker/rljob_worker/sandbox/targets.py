"""What may be called, its limits, and what comes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Cause = Literal["Raised", "TimedOut", "OutOfMemory", "OutputTooLarge", "Died", "NotJson", "Refused"]


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Limits of one call, and of the process that it runs in with everything started there."""

    seconds: float
    memory_bytes: int
    """What the process may use; the largest of their limits where targets share one."""
    processes: int
    """Processes and threads at once, the process that is called among them; the largest where targets share one."""
    output_bytes: int
    """How long the value may be as JSON; and what is printed while the call runs."""


@dataclass(frozen=True, slots=True)
class Target:
    """A function, or a class of which each session has an object."""

    run: str
    """`module:function` or `module:Class`."""
    options: Mapping[str, Any]
    """Keyword arguments of the function, or of the class."""
    limits: CallLimits
    isolated: bool = False
    """Whether each session has a process and a temporary folder of its own; otherwise sessions share processes."""
    environment: tuple[str, ...] = ()
    """Names of the worker's variables that the function may see. Targets that share a process see each other's."""
    readable: tuple[str, ...] = ()
    """Files and folders that it may read while confined. Targets that share a process read each other's."""
    stateful: bool = False
    """Whether calls of an isolated function count on what earlier calls of the session left, as those of objects do."""


@dataclass(frozen=True, slots=True)
class CallError:
    """Why a call has no value."""

    cause: Cause
    message: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The value of a call as JSON, or its error."""

    value: Any
    error: CallError | None
    seconds: float
    """From when it was sent to its process; 0 where it was not."""
