"""An object of a store as a file."""

import io
from collections.abc import Callable
from typing import Any


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
        found = self._read_range(self._at, stop)
        self._at += len(found)
        return found

    def readinto(self, into: Any) -> int:
        view = memoryview(into).cast("B")
        found = self.read(len(view))
        view[: len(found)] = found
        return len(found)
