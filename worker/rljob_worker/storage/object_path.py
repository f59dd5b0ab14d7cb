"""A place in a bucket, with the verbs of `pathlib.Path` that checkpoints use."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, Self, cast

from rljob_worker.storage.bucket import Bucket

PART_BYTES = 16 << 20
"""Bytes of a part of a multipart upload, which has 10,000 parts at most: files of up to 160 GB."""

PARTS_AT_ONCE = 4
"""So much of a file is in memory on its way."""


class RangedFile(io.RawIOBase):
    """A file that can only be read: every read is a request for a range of its bytes."""

    def __init__(self, size: int, read_range: Callable[[int, int], bytes]) -> None:
        """read_range: the bytes from a position up to another."""
        self._size, self._read_range, self._at = size, read_range, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence] + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        stop = self._size if size < 0 else min(self._at + size, self._size)
        if stop <= self._at:
            return b""
        result = self._read_range(self._at, stop)
        self._at += len(result)
        return result

    def readinto(self, into: Any) -> int:
        view = memoryview(into).cast("B")
        result = self.read(len(view))
        view[: len(result)] = result
        return len(result)


class ObjectStat(NamedTuple):
    """What is known of an object without reading it."""

    st_size: int


@dataclass(frozen=True)
class ObjectPath:
    """`s3://bucket/folder/file`. A folder is there as long as something is in it."""

    bucket: Bucket
    key: str

    def __str__(self) -> str:
        return self.bucket.address.url_of(self.key)

    def __fspath__(self) -> str:
        """For libraries that take paths for names; none of them can open it."""
        return str(self)

    def __truediv__(self, name: str) -> ObjectPath:
        return ObjectPath(self.bucket, f"{self.key}/{name}".strip("/"))

    def __lt__(self, other: ObjectPath) -> bool:
        return self.key < other.key

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> ObjectPath:
        return ObjectPath(self.bucket, self.key.rpartition("/")[0])

    def with_name(self, name: str) -> ObjectPath:
        return self.parent / name

    def relative_to(self, folder: ObjectPath) -> str:
        return self.key.removeprefix(f"{folder.key}/")

    def exists(self) -> bool:
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        return self.bucket.size(self.key) is not None

    def is_dir(self) -> bool:
        return bool(self.bucket.children(self.key))

    def stat(self) -> ObjectStat:
        size = self.bucket.size(self.key)
        if size is None:
            raise FileNotFoundError(2, "not there", str(self))
        return ObjectStat(size)

    def mkdir(self, parents: bool = True, exist_ok: bool = True) -> None:
        """Nothing: folders come with what is put in them."""

    def iterdir(self) -> Iterator[ObjectPath]:
        return (ObjectPath(self.bucket, key) for key in self.bucket.children(self.key))

    def glob(self, pattern: str) -> Iterator[ObjectPath]:
        """Objects directly below that match."""
        return (path for path in self.iterdir() if fnmatchcase(path.name, pattern))

    def rglob(self, pattern: str) -> Iterator[ObjectPath]:
        """All objects below that match."""
        result = (ObjectPath(self.bucket, key) for key, _ in self.bucket.objects(self.key))
        return (path for path in result if fnmatchcase(path.name, pattern))

    def sizes(self) -> dict[str, int]:
        """Bytes of every object below, by its relative name."""
        return {key.removeprefix(f"{self.key}/"): size for key, size in self.bucket.objects(self.key)}

    def read_bytes(self) -> bytes:
        return self.bucket.read(self.key)

    def read_range(self, start: int, stop: int) -> bytes:
        """Bytes [start, stop) in one request."""
        return self.bucket.read(self.key, start, stop)

    def read_text(self) -> str:
        return self.read_bytes().decode()

    def write_bytes(self, body: bytes) -> int:
        self.bucket.put(self.key, body)
        return len(body)

    def write_text(self, text: str) -> int:
        return self.write_bytes(text.encode())

    def open(self, mode: str) -> AbstractContextManager[BinaryIO]:
        """`rb`, or `wb`: the object is there when the file was closed without an error."""
        if mode == "rb":
            return cast(BinaryIO, io.BufferedReader(RangedFile(self.stat().st_size, self.read_range), 1 << 20))
        if mode != "wb":
            raise ValueError(f"mode {mode!r}: an object is read (rb) or written whole (wb)")
        return cast(BinaryIO, Upload(self))

    def unlink(self, missing_ok: bool = False) -> None:
        if not missing_ok and not self.is_file():
            raise FileNotFoundError(2, "not there", str(self))
        self.bucket.delete([self.key])

    def delete_below(self) -> None:
        """Everything in the folder."""
        self.bucket.delete([key for key, _ in self.bucket.objects(self.key)])


class Upload:
    """A file that is only written, from its start to its end, in bounded memory. Knows its checksum."""

    def __init__(self, path: ObjectPath) -> None:
        import obstore

        self._path, self._size, self.crc32 = path, 0, 0
        self._open = True
        with path.bucket.errors(path.key):
            self._file: Any = obstore.open_writer(
                path.bucket.client, path.key, buffer_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
            )

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        with self._path.bucket.errors(self._path.key):
            self._file.write(bytes(view))  # a copy: the library keeps what it is given, and torch writes over its own
        self.crc32 = zlib.crc32(view, self.crc32)
        self._size += len(view)
        return len(view)

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Nothing: parts go when they are full."""

    @property
    def closed(self) -> bool:
        return not self._open

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        if self._open:
            self._open = False
            with self._path.bucket.errors(self._path.key):
                self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """What was not written to its end never becomes an object; the store drops its parts by a rule of its own."""
        if kind is None:
            self.close()
        self._open = False
