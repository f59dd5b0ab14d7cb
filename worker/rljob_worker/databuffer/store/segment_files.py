"""The files that segments lie in, an arena in shared memory and perhaps a spill file on disk, as one range of bytes.

Both are reserved for real at start and mapped by the data buffer and by its workers; an offset says which one is meant:

    0                        start of the spill file
    | rows ... | weights     | rows ...            |

Where a disk is slow nobody waits for it but who fills a segment there, in the copy itself: the system writes behind.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import tempfile
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rljob_worker.errors import StorageError

PAGE_BYTES = 4096

Bytes = NDArray[np.uint8]

MAP_FIXED, MAP_NORESERVE = 0x10, 0x4000
"""Flags of <sys/mman.h> on x86-64 and Arm, as the system writes them."""


class Allocator:
    """Hands out page-aligned ranges of [start, start + capacity).

    The lowest free range that fits is taken, so that a step like the one before reuses pages already mapped and warm.
    Neighbouring free ranges are joined as they are given back: fragmentation never lasts.
    """

    def __init__(self, capacity: int, start: int = 0) -> None:
        self.start = start
        self.capacity = capacity // PAGE_BYTES * PAGE_BYTES
        self._free: list[tuple[int, int]] = (
            [(start, self.capacity)] if self.capacity else []
        )  # (offset, length), rising
        self._taken: dict[int, int] = {}

    @property
    def used(self) -> int:
        return sum(self._taken.values())

    @property
    def largest_free(self) -> int:
        return max((length for _, length in self._free), default=0)

    def allocate(self, num_bytes: int) -> int | None:
        """Offset of a fresh range, or None when no free range is long enough."""
        length = rounded(num_bytes)
        for position, (offset, free) in enumerate(self._free):
            if free >= length:
                rest = [(offset + length, free - length)] if free > length else []
                self._free[position : position + 1] = rest
                self._taken[offset] = length
                return offset
        return None

    def free(self, offset: int) -> None:
        """Give a range back; it must have been handed out."""
        length = self._taken.pop(offset)
        position = bisect_left(self._free, (offset, 0))
        start, stop = offset, offset + length
        if position < len(self._free) and self._free[position][0] == stop:
            stop += self._free.pop(position)[1]
        if position and sum(self._free[position - 1]) == start:
            position -= 1
            start = self._free.pop(position)[0]
        self._free.insert(position, (start, stop - start))


def rounded(num_bytes: int) -> int:
    """Bytes a segment really takes: whole pages, at least one."""
    return max(1, -(-num_bytes // PAGE_BYTES)) * PAGE_BYTES


@dataclass(frozen=True, slots=True)
class FileKind:
    """What a place is called, and what helps when it cannot be had."""

    prefix: str
    what: str
    if_unwritable: str
    if_full: str


ARENA = FileKind(
    "rljob-arena-",
    "arena",
    "mount a memory-backed volume there or set RLJOB_ARENA_DIR",
    "lower dataBuffer.memory or enlarge the volume",
)
SPILL = FileKind(
    "rljob-spill-",
    "spill file",
    "dataBuffer.spill needs a directory on local disk that exists and can be written to",
    "free the disk, lower dataBuffer.spill.limit or choose another directory",
)


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A file that segments lie in."""

    path: Path
    num_bytes: int


@contextmanager
def created(kind: FileKind, directory: Path, num_bytes: int) -> Iterator[SegmentFile]:
    """A file of `num_bytes` whose pages exist; gone at the end.

    Raises StorageError when there is no room for it: found here, it can never be a SIGBUS in the middle of a step.
    """
    remove_leftovers(kind, directory)
    path, descriptor = _open_locked(kind, directory)
    try:
        _reserve(kind, descriptor, path, num_bytes)
        yield SegmentFile(path, num_bytes)
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def start_of_spill(arena_bytes: int) -> int:
    """Offset of the first byte of the spill file: pages are mapped whole."""
    return rounded(arena_bytes)


def mapped(places: Sequence[SegmentFile], *, writable: bool) -> Bytes:
    """All places side by side, each from a page's beginning on; lives as long as any view of it.

    Raises StorageError.
    """
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    total = sum(rounded(place.num_bytes) for place in places)
    addresses = _addresses(total)
    start, at = np.frombuffer(addresses, np.uint8).ctypes.data, 0
    for place in places:
        _map_at(start + at, place, protection, os.O_RDWR if writable else os.O_RDONLY)
        at += rounded(place.num_bytes)
    return np.asarray(_Mapped(addresses, start, total, writable))


def _addresses(num_bytes: int) -> mmap.mmap:
    """For all of it, each part of which a file then takes; what nobody may write counts as nobody's memory."""
    try:
        return mmap.mmap(-1, num_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE, mmap.PROT_READ)
    except OSError as error:
        raise StorageError(
            f"cannot map {num_bytes:,} bytes of shared memory and disk: {error.strerror}; raise what a process may "
            "address here (ulimit -v), or lower dataBuffer.memory and dataBuffer.spill.limit"
        ) from error


class _Mapped:
    """What numpy makes an array of, which keeps it."""

    def __init__(self, addresses: mmap.mmap, start: int, num_bytes: int, writable: bool) -> None:
        self._addresses = addresses
        self.__array_interface__ = {
            "version": 3, "shape": (num_bytes,), "typestr": "|u1", "data": (start, not writable)
        }  # fmt: skip


def remove_leftovers(kind: FileKind, directory: Path) -> None:
    """Files of data buffers that were killed: those of our name that no living process holds locked."""
    for path in directory.glob(f"{kind.prefix}*"):
        try:
            descriptor = os.open(path, os.O_RDWR)
        except OSError:
            continue  # another user's, or gone in the meantime
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
        except OSError:
            pass  # a living one holds it, or it is not ours to remove
        finally:
            os.close(descriptor)


def _open_locked(kind: FileKind, directory: Path) -> tuple[Path, int]:
    """A new file of our name, locked for as long as this process lives."""
    while True:
        try:
            descriptor, name = tempfile.mkstemp(prefix=kind.prefix, dir=directory)
        except OSError as error:
            raise _cannot(f"create its {kind.what} in {directory}", error, kind) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            os.close(descriptor)
            os.unlink(name)
            raise _cannot(f"lock its {kind.what} in {directory}", error, kind) from error
        if os.fstat(descriptor).st_nlink:  # else a starting neighbour took it for a leftover before the lock
            return Path(name), descriptor
        os.close(descriptor)


def _cannot(what: str, error: OSError, kind: FileKind) -> StorageError:
    return StorageError(f"the data buffer cannot {what}: {error.strerror}; {kind.if_unwritable}")


def _reserve(kind: FileKind, descriptor: int, path: Path, num_bytes: int) -> None:
    _refuse_emulation(kind, descriptor, path)
    try:
        os.posix_fallocate(descriptor, 0, num_bytes)
    except OSError as error:
        space = os.statvfs(path.parent)
        raise StorageError(
            f"the data buffer cannot reserve {num_bytes:,} bytes for its {kind.what} in {path.parent}: "
            f"{error.strerror}, {space.f_bavail * space.f_frsize:,} bytes are free; {kind.if_full}"
        ) from error


def _refuse_emulation(kind: FileKind, descriptor: int, path: Path) -> None:
    """Where a file system reserves nothing, posix_fallocate writes into every block, and what it wrote may move."""
    if _LIBC.fallocate(descriptor, 0, 0, 1) and ctypes.get_errno() == errno.EOPNOTSUPP:
        raise StorageError(
            f"the file system of {path.parent} cannot reserve room for the data buffer's {kind.what}; "
            f"{kind.if_unwritable}, as ext4, XFS and tmpfs can"
        )


def _map_at(address: int, place: SegmentFile, protection: int, access: int) -> None:
    """Python's mmap has no say in the address."""
    descriptor = os.open(place.path, access)
    try:
        result = _LIBC.mmap(address, place.num_bytes, protection, mmap.MAP_SHARED | MAP_FIXED, descriptor, 0)
    finally:
        os.close(descriptor)
    if result != address:
        raise StorageError(f"cannot map {place.path}: {os.strerror(ctypes.get_errno())}")


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
    return libc


_LIBC = _libc()
