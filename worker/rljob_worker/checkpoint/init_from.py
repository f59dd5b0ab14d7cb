"""Starting a run from the weights of another: only weights; optimizer, schedule and steps begin anew."""

from __future__ import annotations

from collections.abc import Iterable

from rljob_worker.checkpoint.manifest import Committed, committed, damage, read_manifest
from rljob_worker.checkpoint.writer import engine_folder
from rljob_worker.errors import InvalidJob, StorageError
from rljob_worker.storage.paths import StoragePath


def initial_weights(source: StoragePath, engines: Iterable[str]) -> dict[str, StoragePath]:
    """Where the weights are of every one of these engines that the checkpoint also has, by name.

    `source`: a run directory (its newest checkpoint is taken) or one checkpoint's directory. Raises InvalidJob when it
    is neither, or holds none of this job's models.
    """
    checkpoint = find_checkpoint(source)
    folders = {name: checkpoint / "engines" / engine_folder(name) for name in engines}
    result = {name: folder for name, folder in folders.items() if folder.is_dir()}
    if folders and not result:
        there = sorted(path.name for path in (checkpoint / "engines").glob("*"))
        raise InvalidJob(f"checkpoint.initFrom: {checkpoint} holds {there}, none of this job's {sorted(folders)}")
    return result


def find_checkpoint(source: StoragePath) -> StoragePath:
    """The checkpoint directory that `source` names or contains."""
    manifest = read_manifest(source)
    candidates = [Committed(source, manifest)] if manifest else committed(source / "checkpoints")
    if not candidates:
        raise InvalidJob(
            f"checkpoint.initFrom: {source} is neither a run directory with a checkpoint nor a checkpoint directory; "
            "to start from a Hugging Face model give its path under models"
        )
    problem = damage(candidates[-1])
    if problem is not None:
        raise StorageError(f"checkpoint.initFrom: {problem}")
    return candidates[-1].path
