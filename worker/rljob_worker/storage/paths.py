"""A place that a text names: a path of a file system, or of a bucket."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path
from typing import TypeAlias

from rljob_api.vocabulary.data_url import scheme_of
from rljob_worker.storage.address import Address
from rljob_worker.storage.bucket import REQUEST_TIMEOUT_SECONDS, Bucket
from rljob_worker.storage.object_path import PART_BYTES, ObjectPath

StoragePath: TypeAlias = Path | ObjectPath


def storage_path(text: str, timeout_seconds: float = REQUEST_TIMEOUT_SECONDS) -> StoragePath:
    """`s3://bucket/folder` or `/a/folder`. Nothing is asked yet."""
    if scheme_of(text) is None:
        return Path(text)
    address = Address.of(text)
    return ObjectPath(Bucket(address, timeout_seconds), address.key.strip("/"))


def files_below(folder: StoragePath) -> list[tuple[str, StoragePath]]:
    """(name, place) of every file, ascending by the name relative to the folder."""
    if isinstance(folder, ObjectPath):
        return sorted((path.relative_to(folder), path) for path in folder.rglob("*"))
    return sorted((str(path.relative_to(folder)), path) for path in folder.rglob("*") if path.is_file())


def upload(folder: Path, target: ObjectPath, last: Collection[str]) -> None:
    """Every file of a folder, in bounded memory. last: names of files that go when all others are there, since who
    looks takes one of them for a sign of that. Raises OSError."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    for path in sorted(files, key=lambda path: path.name in last):
        with path.open("rb") as source, (target / path.relative_to(folder).as_posix()).open("wb") as file:
            shutil.copyfileobj(source, file, PART_BYTES)


def delete_tree(place: StoragePath) -> None:
    """A folder with all that is in it, where it is there."""
    if isinstance(place, ObjectPath):
        place.delete_below()
    else:
        shutil.rmtree(place, ignore_errors=True)
