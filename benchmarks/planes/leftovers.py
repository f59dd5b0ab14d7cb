"""What killed processes leave behind: memory in /dev/shm, and processes of which nobody knows any more."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

SHARED = Path("/dev/shm")
PREFIX = "rljob-planes-"
MARK = "RLJOB_PLANES_MARK"
"""A variable that everything started for the peers inherits."""
END_SECONDS = 10.0


@contextlib.contextmanager
def shared_directory(where: Path = SHARED) -> Iterator[Path]:
    """A directory in shared memory that tells whose it is, after those of processes that are gone have been removed."""
    remove_of_the_dead(where)
    with tempfile.TemporaryDirectory(dir=where, prefix=f"{PREFIX}{os.getpid()}-") as directory:
        yield Path(directory)


def remove_of_the_dead(where: Path = SHARED) -> None:
    for left in where.glob(f"{PREFIX}*"):
        owner = left.name.removeprefix(PREFIX).partition("-")[0]
        if not Path("/proc", owner).exists():
            shutil.rmtree(left, ignore_errors=True)


def end_marked(mark: str) -> None:
    """End what was started with a mark and has lost its parents; returns when it has ended, and its memory with it."""
    end = time.monotonic() + END_SECONDS
    while (numbers := marked(mark)) and time.monotonic() < end:
        for number in numbers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, 9)
        time.sleep(0.1)


def marked(mark: str) -> list[int]:
    """Processes with the mark in their environment."""
    wanted, result = f"{MARK}={mark}".encode(), []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (place / "environ").read_bytes().split(b"\0"):
                result.append(int(place.name))
    return result
