"""Which checkpoint a new attempt starts from."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from rljob_worker.checkpoint.manifest import MANIFEST, Committed, committed, damage, read_manifest
from rljob_worker.errors import StorageError
from rljob_worker.storage.files import withdraw
from rljob_worker.storage.paths import StoragePath, delete_tree

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where the job goes on: the last trained step and the checkpoint that holds it; step 0 has none."""

    step: int = 0
    checkpoint: StoragePath | None = None


def choose_start(checkpoints: StoragePath, resume: str) -> ResumePoint:
    """The start for `resume`: "auto" (newest good checkpoint, else step 0), "never" (step 0), or a step's number.

    Torn directories are not checkpoints. A damaged one is passed over for an older good one, loudly; when there is none
    left, or the damaged step was asked for by number, StorageError: work is never silently begun again.
    """
    if resume == "never":
        return ResumePoint()
    result = committed(checkpoints)
    if resume != "auto":
        return _exact(result, int(resume), checkpoints)
    damaged: list[str] = []
    for checkpoint in reversed(result):
        problem = damage(checkpoint)
        if problem is None:
            if damaged:
                log.warning("going on from the checkpoint of step %d instead", checkpoint.step)
            return ResumePoint(checkpoint.step, checkpoint.path)
        log.warning("passing over the checkpoint of step %d: %s", checkpoint.step, problem)
        damaged.append(problem)
    if damaged:
        raise StorageError(
            f"no good checkpoint is left in {checkpoints}: {damaged[0]}; restore the file, "
            "or start over with another name or --runs-dir"
        )
    return ResumePoint()


def _exact(result: list[Committed], step: int, checkpoints: StoragePath) -> ResumePoint:
    for checkpoint in result:
        if checkpoint.step == step:
            problem = damage(checkpoint)
            if problem is not None:
                raise StorageError(f"the checkpoint of step {step} is damaged: {problem}; resume from another step")
            return ResumePoint(step, checkpoint.path)
    there = ", ".join(str(checkpoint.step) for checkpoint in result) or "none"
    raise StorageError(f"no checkpoint of step {step} in {checkpoints}; there are: {there}")


def discard_after(checkpoints: StoragePath, step: int) -> None:
    """Delete checkpoints of later steps and directories that were never committed: the run goes on from `step`."""
    later = [checkpoint.path for checkpoint in committed(checkpoints) if checkpoint.step > step]
    torn = [path for path in checkpoints.glob("step-*") if read_manifest(path) is None]
    for path in [*later, *torn]:
        delete_checkpoint(path)


def delete_checkpoint(path: StoragePath) -> None:
    """Remove a checkpoint, or the beginnings of one whose commit may be under way elsewhere.

    What makes it a checkpoint goes first: neither a deletion cut short nor a commit in the middle of it leaves half a
    checkpoint that looks good.
    """
    withdraw(path / MANIFEST)
    delete_tree(path)
