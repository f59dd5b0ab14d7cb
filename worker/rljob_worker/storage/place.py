"""A place that a text names: a path of a file system, or of a bucket."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TypeAlias

from rljob_api.vocabulary.data_url import scheme_of
from rljob_worker.storage.address import Address
from rljob_worker.storage.bucket import PATIENCE_SECONDS, Bucket
from rljob_worker.storage.object_path import ObjectPath

Place: TypeAlias = Path | ObjectPath


def place_of(text: str, patience_seconds: float = PATIENCE_SECONDS) -> Place:
    """`s3://bucket/folder` or `/a/folder`. Nothing is asked yet."""
    if scheme_of(text) is None:
        return Path(text)
    address = Address.of(text)
    return ObjectPath(Bucket(address, patience_seconds), address.key.strip("/"))


def delete_tree(place: Place) -> None:
    """A folder with all that is in it, where it is there."""
    if isinstance(place, ObjectPath):
        place.delete_below()
    else:
        shutil.rmtree(place, ignore_errors=True)
