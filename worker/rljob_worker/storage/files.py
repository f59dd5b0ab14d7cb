"""Small files that are written atomically: a draft, then a rename; in a store, a conditional put."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rljob_worker.errors import StorageError
from rljob_worker.storage.object_path import ObjectPath
from rljob_worker.storage.paths import StoragePath

RESERVED = ""
"""Text of an object whose real one is not published yet."""


class Draft(Protocol):
    """The next text of a small file, which nobody reads until it is published."""

    def publish(self) -> None:
        """Make it the text of the file, at once. Raises StorageError, also when somebody withdrew the draft."""


@dataclass(frozen=True, slots=True)
class FileDraft:
    """Waits in a file next to the file."""

    path: Path

    @property
    def file(self) -> Path:
        """Where the text waits."""
        return self.path.with_name(f".{self.path.name}.tmp")

    def publish(self) -> None:
        with _storage_errors(self.path):
            self.file.replace(self.path)


@dataclass(frozen=True, slots=True)
class ObjectDraft:
    """Waits in memory; its place is taken by an object of this very version, which goes when the draft is withdrawn: a
    put on the condition that it is still there takes the part of a rename."""

    path: ObjectPath
    text: str
    version: str

    def publish(self) -> None:
        with _storage_errors(self.path):
            self.path.bucket.put_if(self.path.key, self.text.encode(), self.version)


def write_draft(path: StoragePath, text: str) -> Draft:
    """A draft of a file that is not there yet. Raises StorageError."""
    with _storage_errors(path):
        if isinstance(path, ObjectPath):
            return ObjectDraft(path, text, path.bucket.put_if(path.key, RESERVED.encode(), None))
        draft = FileDraft(path)
        draft.file.write_text(text)
        return draft


def withdraw(path: StoragePath) -> None:
    """Remove the file and its draft: the writer of a draft has nothing left to publish."""
    if isinstance(path, Path):
        FileDraft(path).file.unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def write_atomically(path: StoragePath, text: str) -> None:
    """Write a small file so that a reader sees the old or the new text, never a part. Raises StorageError."""
    with _storage_errors(path):
        if isinstance(path, ObjectPath):
            path.write_text(text)
            return
        draft = FileDraft(path)
        draft.file.write_text(text)
    draft.publish()


def read_if_there(path: StoragePath) -> str | None:
    """The text of a file, None where there is none. Raises StorageError: a file that cannot be read is not absent."""
    try:
        return path.read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}; mend the storage, then resume") from error


@contextmanager
def _storage_errors(path: StoragePath) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"cannot write {path}: {error.strerror}; free space or fix permissions, then resume"
        ) from error
