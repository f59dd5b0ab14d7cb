"""Asynchronous checkpoints: every rank copies its part and writes the copy, then the lead commits by the manifest.

Writing and committing know no collectives: both are done by threads of their own while the steps go on.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rljob_worker.batch import Batch
from rljob_worker.batch.arrow import from_arrow, to_arrow
from rljob_worker.checkpoint.manifest import (
    MANIFEST,
    SCORE,
    FileEntry,
    Manifest,
    committed,
    directory_name,
    file_entry,
    to_delete,
)
from rljob_worker.checkpoint.restore import delete_checkpoint
from rljob_worker.checkpoint.versions import KeptVersion
from rljob_worker.errors import DeadlineExceeded, StorageError
from rljob_worker.rundir.ownership import Owner, owner_of
from rljob_worker.storage.files import read_if_there, write_atomically, write_draft
from rljob_worker.storage.paths import StoragePath, delete_tree, files_below

if TYPE_CHECKING:
    from rljob_worker.engines.protocols import Shards, TrainEngine

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.01
_STORE_POLL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class StageRows:
    """What a stage holds on one data-parallel rank."""

    stage: str
    dp_rank: int
    rows: Batch


def packed_rows(held: StageRows) -> tuple[str, bytes]:
    """Name and content of the file for one rank's rows of a stage."""
    record = to_arrow(held.rows)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, record.schema) as writer:
        writer.write_batch(record)
    return _name(held.stage, held.dp_rank), sink.getvalue().to_pybytes()


def read_rows(checkpoint: StoragePath, stage: str, dp_rank: int, dp_size: int) -> list[Batch]:
    """The rows that fall to a rank: of its own file, and with fewer ranks than before of those that are gone."""
    result = []
    while (path := checkpoint / _name(stage, dp_rank)).exists():
        result.append(from_arrow(pa.ipc.open_file(path.read_bytes()).get_batch(0)))
        dp_rank += dp_size
    return result


def _name(stage: str, dp_rank: int) -> str:
    return f"rows-{stage}-{dp_rank}.arrow"


@dataclass(frozen=True, slots=True)
class RankPart:
    """One rank's part of a checkpoint as it was at the end of a step: what goes on does not change it."""

    shards: Mapping[str, Shards]
    """By engine name."""
    state: str
    """State of the group's stages, JSON."""
    rows: Mapping[str, bytes]
    """That stages hold, by file name."""
    versions: Sequence[KeptVersion] = ()
    """Not copied: they stay in the store until they are written."""

    @staticmethod
    def copy(
        engines: Mapping[str, TrainEngine],
        state: Mapping[str, Any],
        rows: Iterable[StageRows] = (),
        versions: Sequence[KeptVersion] = (),
    ) -> RankPart:
        """Takes host memory for what the engines have here."""
        shards = {name: engine.copy_shards() for name, engine in engines.items()}
        return RankPart(shards, json.dumps(state), dict(map(packed_rows, rows)), versions)


@dataclass(frozen=True, slots=True)
class RankFiles:
    """Writes one rank's part of a checkpoint."""

    run_dir: StoragePath
    owner: Owner
    group: str
    rank: int

    def write(self, step: int, part: RankPart) -> None:
        """Shards, the group's stage state (rank 0 only), rows, versions, then the done file. Raises StorageError."""
        directory = self.run_dir / "checkpoints" / directory_name(step, self.owner)
        with checkpoint_errors(directory):
            for name, shards in part.shards.items():
                shards.write(directory / "engines" / engine_folder(name))
            directory.mkdir(parents=True, exist_ok=True)
            if self.rank == 0:
                write_atomically(directory / f"state-{self.group}.json", part.state)
            for file_name, content in part.rows.items():
                (directory / file_name).write_bytes(content)
            kept = {version.file_name: version.write(directory) for version in part.versions}
            own = self._shard_files(directory, part.shards) | kept
            entries = {name: file_entry(path) for name, path in own.items()}
            done = {name: [entry.size, entry.crc32] for name, entry in entries.items()}
            write_atomically(directory / done_name(self.group, self.rank), json.dumps(done))

    def _shard_files(self, directory: StoragePath, engines: Iterable[str]) -> dict[str, StoragePath]:
        folders = [directory / "engines" / engine_folder(name) for name in engines]
        own = [path for folder in folders for path in folder.glob(f"__{self.rank}_*")]
        return {f"{path.parent.parent.name}/{path.parent.name}/{path.name}": path for path in own}


@dataclass(frozen=True, slots=True)
class Committer:
    """The lead's part: waits for every rank's done file, makes one index of the ranks' own, then writes the manifest,
    then applies retention."""

    run_dir: StoragePath
    owner: Owner
    plan_hash: str
    ranks: tuple[tuple[str, int], ...]
    """(group, rank) of every worker of the job."""
    keep_last: int
    keep_best: int
    deadline_seconds: float

    def commit(self, step: int, *, score: float | None) -> StoragePath:
        """Returns the committed directory. Raises DeadlineExceeded naming the late ranks, StorageError when a later
        attempt owns the run or the disk is full."""
        directory = self.run_dir / "checkpoints" / directory_name(step, self.owner)
        done = self._wait_for_all(directory)
        with checkpoint_errors(directory):
            merge_all_indexes(directory)
            draft = write_draft(directory / MANIFEST, self._manifest(step, score, directory, done).to_json())
        # looked at last: an attempt that takes the run over from here on withdraws the draft (`restore.delete`), so
        # that there is no moment in which this one commits behind its back
        self._check_owner(step)
        with checkpoint_errors(directory):
            draft.publish()
        self._apply_retention()
        return directory

    def score(self, step: int, score: float) -> None:
        """The score of a committed checkpoint whose step is validated now. Raises StorageError as `commit` does."""
        self._check_owner(step)
        for checkpoint in committed(self.run_dir / "checkpoints"):
            if checkpoint.step == step:
                with checkpoint_errors(checkpoint.path):
                    write_atomically(checkpoint.path / SCORE, json.dumps(score))
        self._apply_retention()

    def _apply_retention(self) -> None:
        checkpoints = committed(self.run_dir / "checkpoints")
        for old in to_delete(checkpoints, keep_last=self.keep_last, keep_best=self.keep_best):
            delete_checkpoint(old.path)

    def _manifest(
        self, step: int, score: float | None, directory: StoragePath, done: Mapping[str, FileEntry]
    ) -> Manifest:
        return Manifest(
            step=step,
            attempt=self.owner.attempt,
            plan_hash=self.plan_hash,
            score=score,
            files=all_files(directory, done),
        )

    def _check_owner(self, step: int) -> None:
        owner = owner_of(self.run_dir)
        if owner != self.owner:
            raise StorageError(f"{self.owner} may not commit step {step}: the run belongs to {owner}")

    def _wait_for_all(self, directory: StoragePath) -> dict[str, FileEntry]:
        missing = set(self.ranks)
        entries: dict[str, FileEntry] = {}
        end = time.monotonic() + self.deadline_seconds
        while missing:
            for group, rank in _written(directory, missing):
                done = read_json(directory / done_name(group, rank))
                if done is not None:
                    missing.discard((group, rank))
                    entries |= {name: FileEntry(*entry) for name, entry in done.items()}
            if missing and time.monotonic() > end:
                names = ", ".join(f"{group}/{rank}" for group, rank in sorted(missing))
                raise DeadlineExceeded(f"checkpoint {directory.name}: no done file from worker {names}")
            if missing:
                time.sleep(_POLL_SECONDS if isinstance(directory, Path) else _STORE_POLL_SECONDS)
        return entries


def all_files(directory: StoragePath, known: Mapping[str, FileEntry]) -> dict[str, FileEntry]:
    """Every file of a checkpoint with size and checksum; checksums that a rank has computed are not computed again."""
    below = (item for item in files_below(directory) if item[0] != MANIFEST)
    return {name: known.get(name) or file_entry(path) for name, path in below}


def merge_all_indexes(directory: StoragePath) -> None:
    """Merge the indexes of every engine of a checkpoint, after all ranks have written theirs. Raises OSError."""
    folders: list[StoragePath] = sorted((directory / "engines").glob("*"), key=str)
    for folder in folders:
        from rljob_worker.engines.fsdp.checkpoint.shard_index import merge_indexes  # torch comes in here

        merge_indexes(folder)


def engine_folder(name: str) -> str:
    return name.replace("/", "-")


def done_name(group: str, rank: int) -> str:
    return f"done-{group}-{rank}.json"


def _written(directory: StoragePath, missing: Set[tuple[str, int]]) -> list[tuple[str, int]]:
    """The ranks whose done files are read: in an object store those that one listing shows, instead of a request for
    each rank."""
    if isinstance(directory, Path):
        return sorted(missing)
    there = {path.name for path in directory.glob("done-*")}
    return sorted(item for item in missing if done_name(*item) in there)


def read_json(path: StoragePath) -> dict[str, Any] | None:
    """What a rank wrote, None where it has not. Raises StorageError."""
    text = read_if_there(path)
    return None if text is None else json.loads(text)


@contextmanager
def checkpoint_errors(directory: StoragePath) -> Iterator[None]:
    """Turn a failed write into a StorageError that names the place; what was written so far goes, to free the space."""
    try:
        yield
    except OSError as error:
        delete_tree(directory)
        kept = "; the previous checkpoint is intact" if committed(directory.parent) else ", and there is no earlier one"
        raise StorageError(
            f"cannot write the checkpoint {directory}: {storage_reason(error)}{kept}: free space or fix "
            "permissions, then "
            "resume"
        ) from error


def storage_reason(error: BaseException) -> str:
    """What the operating system said, wherever a library hid it; else the last line of the error.

    torch answers a failed write with an error of its own whose context is the OSError.
    """
    waiting, seen = [error], set()
    while waiting:
        item = waiting.pop()
        if isinstance(item, OSError) and item.strerror:
            return item.strerror
        seen.add(id(item))
        waiting += [one for one in (item.__cause__, item.__context__) if one and id(one) not in seen]
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__
