"""The file behind the arena: reserved for real at start, mapped by the data buffer and by its workers."""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rljob_worker.errors import StorageError

Bytes = NDArray[np.uint8]

ARENA_PREFIX = "rljob-arena-"


@contextmanager
def created(directory: Path, num_bytes: int) -> Iterator[Path]:
    """A file of `num_bytes` whose pages exist; gone at the end.

    Raises StorageError when the memory does not fit: found here, it can never be a SIGBUS in the middle of a step.
    """
    remove_leftovers(directory)
    path, descriptor = _open_locked(directory)
    try:
        _reserve(descriptor, path, num_bytes)
        yield path
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def mapped(path: Path, num_bytes: int, *, writable: bool) -> Bytes:
    """The arena as bytes [num_bytes]; lives as long as any view of it."""
    descriptor = os.open(path, os.O_RDWR if writable else os.O_RDONLY)
    try:
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        return np.frombuffer(mmap.mmap(descriptor, num_bytes, mmap.MAP_SHARED, protection), np.uint8)
    finally:
        os.close(descriptor)


def remove_leftovers(directory: Path) -> None:
    """Arenas of data buffers that were killed: files of our name that no living process holds locked."""
    for path in directory.glob(f"{ARENA_PREFIX}*"):
        try:
            descriptor = os.open(path, os.O_RDWR)
        except OSError:
            continue  # another user's, or gone in the meantime
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
        except BlockingIOError:
            pass
        finally:
            os.close(descriptor)


def _open_locked(directory: Path) -> tuple[Path, int]:
    """A new file of our name, locked for as long as this process lives."""
    while True:
        try:
            descriptor, name = tempfile.mkstemp(prefix=ARENA_PREFIX, dir=directory)
        except OSError as error:
            raise StorageError(
                f"the data buffer cannot create its arena in {directory}: {error.strerror}; mount a memory-backed "
                "volume there or set RLJOB_ARENA_DIR"
            ) from error
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:  # else a starting neighbour took it for a leftover before the lock
            return Path(name), descriptor
        os.close(descriptor)


def _reserve(descriptor: int, path: Path, num_bytes: int) -> None:
    try:
        os.posix_fallocate(descriptor, 0, num_bytes)
    except OSError as error:
        space = os.statvfs(path.parent)
        raise StorageError(
            f"the data buffer cannot reserve {num_bytes:,} bytes in {path.parent}: {error.strerror}, "
            f"{space.f_bavail * space.f_frsize:,} bytes are free; lower dataBuffer.memory or enlarge the volume"
        ) from error
