"""Journals of what a rank's policies play."""

from __future__ import annotations

from collections.abc import Callable

from rljob_api.v1alpha1 import RLJobSpec
from rljob_worker.checkpoint.manifest import committed
from rljob_worker.conversations.journal.files import JournalFolder, content_digest
from rljob_worker.data.source import DataAccess
from rljob_worker.storage.paths import StoragePath


def journal_folder(spec: RLJobSpec, policy: str, rank: int, access: DataAccess, home: StoragePath) -> JournalFolder:
    """Where a rank records what a policy plays, beside the run's checkpoints in `home`. access: names the attempt."""
    name = f"{policy}-{rank:05d}-{access.attempt}"
    over = is_over(spec, home)
    return JournalFolder(home / "journals", name, content_digest(spec), is_over=over, tidies=rank == 0)


def is_over(spec: RLJobSpec, home: StoragePath) -> Callable[[int, int], bool]:
    """Whether a step is never repeated while another one begins: a checkpoint of it or a later one is committed. In a
    job with checkpoints of its last step alone, journals of all steps would be kept: it keeps those under way."""

    def over(step: int, now: int) -> bool:
        if not spec.checkpoint.every_steps:
            return step < now - spec.rollout.max_staleness - 1
        checkpoints = committed(home / "checkpoints")
        return bool(checkpoints) and step <= checkpoints[-1].step

    return over
