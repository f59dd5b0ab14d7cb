"""Small files that are never seen half-written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rljob_worker.errors import StorageError


@dataclass(frozen=True, slots=True)
class Draft:
    """The next text of a small file, beside it until it is published."""

    path: Path

    @property
    def file(self) -> Path:
        """Where the text waits."""
        return self.path.with_name(f".{self.path.name}.tmp")

    @staticmethod
    def write(path: Path, text: str) -> Draft:
        """Raises StorageError."""
        draft = Draft(path)
        with _storage_errors(path):
            draft.file.write_text(text)
        return draft

    def publish(self) -> None:
        """Make it the text of the file, at once. Raises StorageError, also when somebody withdrew the draft."""
        with _storage_errors(self.path):
            self.file.replace(self.path)

    def withdraw(self) -> None:
        """Whoever wrote it has nothing left to publish."""
        self.file.unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> None:
    """Write a small file so that a reader sees the old or the new text, never a part. Raises StorageError."""
    Draft.write(path, text).publish()


def read_if_there(path: Path) -> str | None:
    """The text of a file, None where there is none. Raises StorageError: a file that cannot be read is not absent."""
    try:
        return path.read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}; mend the storage, then resume") from error


@contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"cannot write {path}: {error.strerror}; free space or fix permissions, then resume"
        ) from error
