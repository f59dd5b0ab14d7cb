"""torch's sharded checkpoints on a disk or in a bucket."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import FileSystemBase, _StorageInfo

from rljob_worker.storage.object_path import ObjectPath
from rljob_worker.storage.paths import StoragePath


class ObjectFiles(FileSystemBase):  # type: ignore[misc]
    """A bucket as torch wants a file system."""

    @contextmanager
    def create_stream(self, path: ObjectPath, mode: str) -> Iterator[Any]:
        with path.open(mode) as stream:
            yield stream

    def concat_path(self, path: ObjectPath, suffix: str) -> ObjectPath:
        return path / suffix

    def rename(self, path: ObjectPath, new_path: ObjectPath) -> None:
        """Not in one step, which nobody needs: a checkpoint is one when its manifest is there."""
        path.bucket.copy(path.key, new_path.key)
        path.unlink(missing_ok=True)

    def init_path(self, path: ObjectPath) -> ObjectPath:
        return path

    def mkdir(self, path: ObjectPath) -> None:
        path.mkdir()

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return isinstance(checkpoint_id, ObjectPath)

    def exists(self, path: ObjectPath) -> bool:
        return path.exists()

    def rm_file(self, path: ObjectPath) -> None:
        path.unlink(missing_ok=True)


class PlaceWriter(dcp.FileSystemWriter):  # type: ignore[misc]
    """Writes to any place."""

    def __init__(self, directory: StoragePath) -> None:
        on_disk = isinstance(directory, Path)
        super().__init__(directory if on_disk else ".", sync_files=on_disk)
        if not on_disk:
            self.fs, self.path = ObjectFiles(), directory

    @property
    def checkpoint_id(self) -> str:
        """Noted in the index."""
        return str(self.path)


class PlaceReader(dcp.FileSystemReader):  # type: ignore[misc]
    """Reads from any place; of a bucket each shard in one request."""

    def __init__(self, directory: StoragePath) -> None:
        super().__init__(directory if isinstance(directory, Path) else ".")
        if isinstance(directory, ObjectPath):
            self.fs, self.path = ObjectFiles(), directory

    def _slice_file(self, file: Any, place: _StorageInfo) -> Any:
        if not isinstance(self.path, ObjectPath):
            return super()._slice_file(file, place)
        whole = self.path / place.relative_path
        return io.BytesIO(whole.read_range(place.offset, place.offset + place.length))
