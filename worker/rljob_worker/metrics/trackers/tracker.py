"""The interface of a tracker, and what it knows of its run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

FAILED_SECONDS = 5.0
"""How long an attempt that failed waits for what is on its way: others wait for it to end, to start it again."""


class Tracker(Protocol):
    """Gets every step, in order."""

    def log(self, step: int, metrics: Mapping[str, float], samples: Sequence[Mapping[str, Any]]) -> None:
        """One step: finite metrics, and the rows to show."""

    def upload(self, path: Path, name: str) -> None:
        """A file or folder of the run, which may be gone by the time it is read."""

    def cut_back(self, step: int) -> None:
        """Forget steps after `step`: the run goes on from there."""

    def close(self, *, failed: bool = False) -> None:
        """The attempt has ended, by an error where it failed; a later one may go on with the run."""


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """What a tracker knows of the run."""

    directory: Path
    name: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The job's spec, as in YAML."""
    failed_seconds: float = FAILED_SECONDS


TrackerOpener = Callable[[TrackedRun], Tracker]
"""What a `DeclaredTracker` of the catalogue names."""
