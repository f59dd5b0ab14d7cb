"""A file of JSON objects, one per line and in order of `step`, that survives crashes and can be cut back."""

import contextlib
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rljob_worker.errors import StorageError
from rljob_worker.storage.paths import StoragePath


class LinesFile:
    """Appends whole lines; every `write` is on disk when it returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with line_file_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)

    def write(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Append one line per record. JSON has no NaN or infinity: they become null."""
        data = b"".join(json.dumps(finite(record)).encode() + b"\n" for record in records)
        with line_file_errors(self._path):
            while data:
                data = data[self._file.write(data) :]
            os.fsync(self._file.fileno())

    def cut_back(self, step: int) -> None:
        """Drop lines of steps after `step`, and what a crash left unfinished."""
        rest = self._path.with_name(f".{self._path.name}.cut")
        with line_file_errors(self._path):
            with rest.open("wb") as out, self._path.open("rb") as file:
                out.writelines(line for line, record in parsed_lines(file) if record["step"] <= step)
                out.flush()
                os.fsync(out.fileno())
            rest.replace(self._path)
            self._file.close()
            self._file = self._path.open("ab", buffering=0)

    def close(self) -> None:
        with line_file_errors(self._path):
            self._file.close()


def records_in(path: Path) -> Iterator[dict[str, Any]]:
    """Those of the whole lines of a file, as they are read: it may be larger than memory, or not there."""
    if path.exists():
        with path.open("rb") as file:
            yield from (record for _, record in parsed_lines(file))


def parsed_lines(lines: Iterable[bytes]) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Whole lines with their records; torn ones, and ones that are not a record of a step, are left out."""
    for line in lines:
        if not line.endswith(b"\n"):
            continue
        try:
            record = json.loads(line, object_hook=_with_shared_names)
        except ValueError:
            continue
        if isinstance(record, dict) and isinstance(record.get("step"), int):
            yield line, record


def _with_shared_names(record: dict[str, Any]) -> dict[str, Any]:
    """The record, with names that all records of a process have once: a long run has thousands of each."""
    return {sys.intern(name): value for name, value in record.items()}


def finite(value: Any) -> Any:
    """`value` with NaN and infinities, at any depth, replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


@contextlib.contextmanager
def line_file_errors(path: StoragePath) -> Iterator[None]:
    """Turn the system's errors about `path` into StorageError."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(
            f"cannot write {path}: {error.strerror or error}; free space or fix permissions, then resume"
        ) from error
