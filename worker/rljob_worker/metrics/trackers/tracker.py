"""What every tracker is asked for."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol


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
