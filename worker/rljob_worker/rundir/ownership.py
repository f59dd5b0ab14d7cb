"""To whom a run directory belongs: only its owner commits checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

from rljob_worker.errors import StorageError
from rljob_worker.storage.files import read_if_there, write_atomically
from rljob_worker.storage.paths import StoragePath

FILE = "attempt"


@dataclass(frozen=True, slots=True)
class Owner:
    """An attempt of a run."""

    attempt: int
    """0: nobody yet."""
    run_id: str = ""
    """On a cluster the uid of the RLJob, which another job of the same name does not share. Empty on one machine, where
    attempts are counted over all runs in a directory."""

    def __str__(self) -> str:
        return f"attempt {self.attempt}{f' of job {self.run_id}' if self.run_id else ''}"

    @property
    def mark(self) -> str:
        """What the names of this owner's directories end in."""
        return f"attempt-{self.attempt}{f'-{self.run_id[:8]}' if self.run_id else ''}"


def claim_run(home: StoragePath, claimant: Owner) -> None:
    """Note that the run belongs to `claimant` from now on; StorageError when a later attempt of the same job has it.

    A new job of the same name takes the run over from any attempt of the old job.
    """
    owner = owner_of(home)
    if owner.run_id == claimant.run_id and owner.attempt > claimant.attempt:
        raise StorageError(f"{home} belongs to {owner} already; this is attempt {claimant.attempt}")
    write_atomically(home / FILE, f"{claimant.attempt} {claimant.run_id}".strip())


def owner_of(home: StoragePath) -> Owner:
    """The last owner that claimed the run. Raises StorageError."""
    attempt, _, run_id = (read_if_there(home / FILE) or "0").partition(" ")
    return Owner(int(attempt), run_id.strip())
