"""One supervisor per run directory, as long as its process lives: the kernel drops the lock of a dead process."""

import fcntl
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from rljob_worker.errors import InvalidJob

PATIENCE_SECONDS = 1.0
"""A `rljob status` holds the lock for the blink of an eye."""


class RunLock:
    """`with RunLock(path): ...`; InvalidJob naming the other supervisor's pid when there is one."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Self:
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not _try_lock(self._fd):
            if time.monotonic() > deadline:
                owner = os.pread(self._fd, 32, 0).decode().strip() or "unknown"
                os.close(self._fd)
                raise InvalidJob(
                    f"{self._path.parent} is in use by process {owner}; wait for it, stop it with `kill {owner}`, "
                    "or give this run another name (`--set metadata.name=...`) or --runs-dir"
                )
            time.sleep(0.02)
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._fd)


def is_locked(path: Path) -> bool:
    """Whether a living supervisor has the directory."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _try_lock(fd)
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
