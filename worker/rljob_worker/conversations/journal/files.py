"""Journals of steps as files: one a rank and attempt, JSON lines behind a line that says of which job.

    journals/step-00000012/actor-00003-2.jsonl          rank 3, second attempt of the job

In a directory a line is there once it was written, whatever becomes of the process. In an object store lines go in
objects of some seconds; what was not uploaded yet is done again.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from rljob_api.v1alpha1 import RLJobSpec
from rljob_worker.conversations.journal.records import Record, records_of
from rljob_worker.conversations.journal.replay import Entries
from rljob_worker.errors import StorageError
from rljob_worker.storage.paths import StoragePath, delete_tree

SEGMENT_BYTES = 1 << 20
SEGMENT_SECONDS = 5.0
"""How much an object of a store has at most, and how long a line waits for others there."""
_STEP = re.compile(r"step-(\d+)")
_NOT_OF_CONTENT = ("stop", "suspend", "lifecycle", "failurePolicy", "scheduling", "monitoring", "workerGroups", "env")
"""Fields that decide nothing of what is played."""


class JournalFolder:
    """Journals of one rank, and those that earlier attempts left."""

    def __init__(
        self, folder: StoragePath, name: str, job: str, *, is_over: Callable[[int, int], bool], tidies: bool
    ) -> None:
        """name: of this rank and attempt. job: digest of what decides what is played; journals of others are of no
        use. is_over: whether an earlier step is never repeated, now that another one begins. tidies: whether this rank
        deletes journals of such steps."""
        self._folder, self._name, self._job = folder, name, job
        self._is_over, self._tidies = is_over, tidies
        self._step: int | None = None
        self._entries: _Lines | None = None

    def records(self, step: int, trajectories: frozenset[int]) -> dict[tuple[int, int], Record]:
        """What earlier attempts at a step recorded of these trajectories. Raises StorageError."""
        if self._tidies:
            self._tidy(step)
        return records_of(self._lines(step), trajectories)

    def entries(self, step: int) -> Entries:
        """Where this attempt at a step is recorded."""
        if self._entries is None or self._step != step:
            self.close()
            self._step, self._entries = step, _Lines(self._place(step), self._name, self._job)
        return self._entries

    def close(self) -> None:
        """Write what waits, and end the file."""
        if self._entries is not None:
            self._entries.close()
            self._entries = None

    def _place(self, step: int) -> StoragePath:
        return self._folder / f"step-{step:08d}"

    def _lines(self, step: int) -> Iterator[bytes]:
        try:
            paths: list[StoragePath] = sorted(self._place(step).glob("*.jsonl"), key=str)
            for path in paths:
                with path.open("rb") as file:
                    lines = file.read().splitlines()
                if lines and _job_of(lines[0]) == self._job:
                    yield from lines[1:]
        except FileNotFoundError:
            return
        except OSError as error:
            raise StorageError(f"cannot read the journal {self._place(step)}: {error}") from error

    def _tidy(self, step: int) -> None:
        for path in self._folder.glob("step-*"):
            match = _STEP.search(str(path))
            if match is not None and self._is_over(int(match.group(1)), step):
                delete_tree(path)


class _Lines:
    """Lines of one file of a directory, or of objects one after another."""

    def __init__(self, place: StoragePath, name: str, job: str) -> None:
        self._place, self._name, self._head = place, name, json.dumps({"job": job}).encode() + b"\n"
        self._file: BinaryIO | None = None
        self._waiting = bytearray()
        self._pictures: set[str] = set()
        self._since, self._number = time.monotonic(), 0

    def append(self, entry: Mapping[str, Any]) -> None:
        """Raises StorageError."""
        line = json.dumps(entry).encode() + b"\n"
        try:
            if isinstance(self._place, Path):
                self._write(self._place, line)
            else:
                self._waiting += line
                if len(self._waiting) > SEGMENT_BYTES or time.monotonic() - self._since > SEGMENT_SECONDS:
                    self._upload()
        except OSError as error:
            raise StorageError(f"cannot write the journal {self._place / self._name}: {error}") from error

    def append_picture(self, digest: str, url: str) -> None:
        """Raises StorageError."""
        if digest not in self._pictures:
            self.append({"picture": digest, "url": url})
            self._pictures.add(digest)

    def close(self) -> None:
        """Raises StorageError."""
        if self._file is not None:
            self._file.close()
        if self._waiting:
            self._upload()

    def _write(self, place: Path, line: bytes) -> None:
        if self._file is None:
            place.mkdir(parents=True, exist_ok=True)
            self._file = (place / f"{self._name}.jsonl").open("ab", buffering=0)
            if not self._file.tell():
                self._file.write(self._head)
        self._file.write(line)

    def _upload(self) -> None:
        try:
            with (self._place / f"{self._name}-{self._number:06d}.jsonl").open("wb") as file:
                file.write(self._head + bytes(self._waiting))
        except OSError as error:
            raise StorageError(f"cannot write the journal {self._place / self._name}: {error}") from error
        self._number, self._since = self._number + 1, time.monotonic()
        self._waiting.clear()


def content_digest(spec: RLJobSpec) -> str:
    """Equal only for jobs that play alike."""
    fields = {name: value for name, value in spec.to_json().items() if name not in _NOT_OF_CONTENT}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:32]


def _job_of(line: bytes) -> str | None:
    try:
        head = json.loads(line)
    except ValueError:
        return None
    return head.get("job") if isinstance(head, dict) else None
