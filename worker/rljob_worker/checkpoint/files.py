"""Small files that are never seen half-written."""

from __future__ import annotations

from pathlib import Path

from rljob_worker.errors import StorageError


def write_atomically(path: Path, text: str) -> None:
    """Write a small file so that a reader sees the old or the new text, never a part."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_text(text)
        temporary.replace(path)
    except OSError as error:
        raise StorageError(
            f"cannot write {path}: {error.strerror}; free space or fix permissions, then resume"
        ) from error
