"""What a worker group remembers besides its engines: stages with a memory, the data it reads, seconds of running."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rljob_worker.checkpoint.writer import read_json
from rljob_worker.data.listing import DataIdentity, changes, listing_from_json, named_changes
from rljob_worker.errors import BadData, StorageError
from rljob_worker.storage.paths import StoragePath


@dataclass(frozen=True, slots=True)
class GroupState:
    """One per group and checkpoint, in `state-<group>.json`."""

    stages: Mapping[str, Any] = field(default_factory=dict)
    dataset: str | None = None
    """Fingerprint of the training data; None in a group that reads none."""
    active_seconds: float = 0.0
    """Seconds of running, all attempts; 0 in groups other than the lead's."""

    files: list[list[str | int]] = field(default_factory=list)
    """Path, size and version of each file of the training data."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def read(checkpoint: StoragePath, group: str) -> GroupState:
        """Raises StorageError when the checkpoint has none for this group."""
        raw = read_json(checkpoint / f"state-{group}.json")
        if raw is None:
            raise StorageError(
                f"{checkpoint} has no state of worker group {group!r}; was the group renamed? Groups keep their "
                "names over a resume"
            )
        return GroupState(**raw)

    def check_dataset(self, data: DataIdentity) -> None:
        """Refuse to go on with other data than the run began with, or in other shares. The content decides: files may
        have moved."""
        if self.dataset is not None and data.fingerprint is not None and self.dataset != data.fingerprint:
            same = "its files have not, but what is read of them has, or data.train[].weight"
            what = (
                f": {named_changes(changes(listing_from_json(self.files), data.files)) or same}" if self.files else ""
            )
            raise BadData(
                f"the training data has changed since the checkpoint was written{what}. The order of prompts would not "
                "be that of one run; restore the data, or start a new run with checkpoint.initFrom"
            )
