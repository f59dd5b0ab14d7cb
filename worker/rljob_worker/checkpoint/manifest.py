"""Which checkpoints of a run are good, and which to keep. Reads directories, decides with pure functions."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from rljob_worker.errors import InvalidJob
from rljob_worker.rundir.ownership import Owner
from rljob_worker.storage.files import read_if_there
from rljob_worker.storage.object_path import ObjectPath
from rljob_worker.storage.paths import StoragePath

MANIFEST = "manifest.json"
SCORE = "score.json"
"""The score of a checkpoint that was committed before its step was validated."""
SCHEMA_VERSION: Final = 1
"""The layout of a checkpoint, in which files and columns that a reader may leave out do not count."""
_CHUNK_BYTES = 1 << 22


class FileEntry(NamedTuple):
    size: int
    crc32: int


class Manifest(BaseModel):
    """What a committed checkpoint holds; in the file camelCase, an entry of `files` as [size, crc32]."""

    model_config = ConfigDict(frozen=True, strict=True, alias_generator=to_camel, validate_by_name=True)

    schema_version: Literal[1] = 1
    step: int
    attempt: int
    plan_hash: str
    score: float | None
    """Validation accuracy, or mean reward where there is no validation; what `keepBest` compares. In the file None
    where the step was validated later: then it is in a file of its own."""
    files: Mapping[str, FileEntry]

    def to_json(self) -> str:
        return self.model_dump_json(by_alias=True)

    @staticmethod
    def from_json(text: str) -> Manifest:
        """Raises ValueError for what is not a manifest."""
        return Manifest.model_validate_json(text)


@dataclass(frozen=True, slots=True)
class Committed:
    """A checkpoint directory with a readable manifest."""

    path: StoragePath
    manifest: Manifest

    @property
    def step(self) -> int:
        return self.manifest.step


def directory_name(step: int, owner: Owner) -> str:
    """A directory of this owner's alone: what a lost pod of another one still writes does not meet it."""
    return f"step-{step:08d}-{owner.mark}"


def committed(checkpoints: StoragePath) -> list[Committed]:
    """Checkpoints with a manifest, oldest first; of one step the newest attempt."""
    read = ((path, read_manifest(path)) for path in checkpoints.glob("step-*"))
    result = [Committed(path, manifest) for path, manifest in read if manifest is not None]
    newest = {item.step: item for item in sorted(result, key=lambda item: item.manifest.attempt)}
    return [newest[step] for step in sorted(newest)]


def read_manifest(path: StoragePath) -> Manifest | None:
    """The manifest, or None where there is none or it is torn or something else: such a directory is not a checkpoint.

    Raises StorageError when it cannot be read: a checkpoint out of reach is not one that is not there. Raises
    InvalidJob for one that a newer rljob wrote: taken for a torn one, it would be deleted.
    """
    try:
        text = read_if_there(path / MANIFEST)
    except ValueError:
        return None
    if text is None:
        return None
    try:
        manifest = Manifest.from_json(text)
        later = read_if_there(path / SCORE) if manifest.score is None else None
        return manifest if later is None else manifest.model_copy(update={"score": json.loads(later)})
    except ValueError:
        _refuse_newer(text, path)
        return None


def _refuse_newer(text: str, checkpoint: StoragePath) -> None:
    """Raises InvalidJob for the manifest of a later schema, whatever else is in it."""
    try:
        content: Any = json.loads(text)
    except ValueError:
        return
    version = content.get("schemaVersion") if isinstance(content, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise InvalidJob(
            f"a newer rljob wrote checkpoint {checkpoint}: its manifest has schemaVersion {version}, and this rljob "
            f"reads {SCHEMA_VERSION}; go on with the newer one, or give the run another name (metadata.name)"
        )


def damage(checkpoint: Committed) -> str | None:
    """What is wrong with the files of a checkpoint, or None. On a disk every byte of files of the right size is read
    once; an object store keeps checksums of its own, and sizes come with one listing."""
    directory = checkpoint.path
    if isinstance(directory, ObjectPath):
        return _object_damage(directory, checkpoint.manifest.files)
    with ThreadPoolExecutor(4) as pool:
        checks = pool.map(lambda item: _file_damage(directory, *item), checkpoint.manifest.files.items())
        return next((problem for problem in checks if problem), None)


def _object_damage(directory: ObjectPath, files: Mapping[str, FileEntry]) -> str | None:
    try:
        sizes = directory.sizes()
    except OSError as error:
        return f"{directory}: {error.strerror}"
    for name, entry in files.items():
        if name not in sizes:
            return f"{directory / name}: not there"
        if sizes[name] != entry.size:
            return f"{directory / name} has {sizes[name]} bytes, its manifest says {entry.size}"
    return None


def _file_damage(directory: Path, name: str, entry: FileEntry) -> str | None:
    path = directory / name
    try:
        size = path.stat().st_size
        if size != entry.size:
            return f"{path} has {size} bytes, its manifest says {entry.size}"
        return None if file_entry(path) == entry else f"{path} does not match its checksum"
    except OSError as error:
        return f"{path}: {error.strerror}"


def file_entry(path: StoragePath) -> FileEntry:
    """Size and checksum of a file."""
    crc, size = 0, 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            crc, size = zlib.crc32(chunk, crc), size + len(chunk)
    return FileEntry(size, crc)


def to_delete(checkpoints: Iterable[Committed], *, keep_last: int, keep_best: int) -> list[Committed]:
    """Checkpoints that retention no longer keeps; ties of score go to the later step."""
    every = sorted(checkpoints, key=lambda checkpoint: checkpoint.step)
    scored = [c for c in every if c.manifest.score is not None]
    best = sorted(scored, key=lambda c: (c.manifest.score, c.step), reverse=True)[:keep_best]
    kept = {c.step for c in [*every[max(0, len(every) - keep_last) :], *best]}
    return [c for c in every if c.step not in kept]
