"""Which checkpoints of a run are good, and which to keep. Reads directories, decides with pure functions."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_worker.checkpoint.ownership import Owner

MANIFEST = "manifest.json"
_NAME = re.compile(r"step-(\d{8,})-attempt-(\d+)(?:-[0-9a-z]+)?")
_CHUNK_BYTES = 1 << 22


@dataclass(frozen=True, slots=True)
class FileEntry:
    size: int
    crc32: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a committed checkpoint holds."""

    step: int
    attempt: int
    plan_hash: str
    score: float | None
    """Validation accuracy, or mean reward where there is no validation; what `keepBest` compares."""
    files: Mapping[str, FileEntry]

    def to_json(self) -> str:
        files = {name: [entry.size, entry.crc32] for name, entry in sorted(self.files.items())}
        head = {"step": self.step, "attempt": self.attempt, "planHash": self.plan_hash}
        return json.dumps({"schemaVersion": 1, **head, "score": self.score, "files": files}, indent=1)

    @staticmethod
    def from_json(text: str) -> Manifest:
        raw: dict[str, Any] = json.loads(text)
        files = {name: FileEntry(*entry) for name, entry in raw["files"].items()}
        return Manifest(raw["step"], raw["attempt"], raw["planHash"], raw["score"], files)


@dataclass(frozen=True, slots=True)
class Committed:
    """A checkpoint directory with a readable manifest."""

    path: Path
    manifest: Manifest

    @property
    def step(self) -> int:
        return self.manifest.step


def directory_name(step: int, owner: Owner) -> str:
    """A directory of this owner's alone: what a lost pod of another one still writes does not meet it."""
    return f"step-{step:08d}-{owner.mark}"


def committed(checkpoints: Path) -> list[Committed]:
    """Checkpoints with a manifest, oldest first; of one step the newest attempt."""
    found: dict[int, Committed] = {}
    for path in sorted(checkpoints.glob("step-*-attempt-*"), key=_step_and_attempt):
        manifest = read_manifest(path)
        if manifest is not None:
            found[manifest.step] = Committed(path, manifest)
    return [found[step] for step in sorted(found)]


def read_manifest(path: Path) -> Manifest | None:
    """The manifest, or None where there is none or it is torn: such a directory is not a checkpoint."""
    try:
        return Manifest.from_json((path / MANIFEST).read_text())
    except (OSError, ValueError, KeyError, TypeError):
        return None


def damage(checkpoint: Committed) -> str | None:
    """What is wrong with the files of a checkpoint, or None; reads every byte once."""
    with ThreadPoolExecutor(4) as pool:
        checks = pool.map(lambda item: _file_damage(checkpoint.path, *item), checkpoint.manifest.files.items())
        return next((problem for problem in checks if problem), None)


def _file_damage(directory: Path, name: str, entry: FileEntry) -> str | None:
    path = directory / name
    try:
        found = file_entry(path)
    except OSError as error:
        return f"{path}: {error.strerror}"
    if found.size != entry.size:
        return f"{path} has {found.size} bytes, its manifest says {entry.size}"
    return None if found.crc32 == entry.crc32 else f"{path} does not match its checksum"


def file_entry(path: Path) -> FileEntry:
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


def _step_and_attempt(path: Path) -> tuple[int, int]:
    match = _NAME.fullmatch(path.name)
    return (int(match[1]), int(match[2])) if match else (-1, -1)
