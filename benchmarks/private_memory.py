"""What a process has for itself alone, now and at most: `Private_Dirty` of smaps_rollup.

Pages that a fork shares with its parent and files that are mapped are not in it.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MIB = 1 << 20
_M_MMAP_THRESHOLD = -3


def private_bytes() -> int:
    """Bytes of this process that no other has."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_Dirty"))


def give_back_what_is_freed() -> None:
    """Tensors of 64 KiB and more get pages of their own from now on: glibc keeps none of them for later."""
    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 64 << 10)


class PeakMemory:
    """The most a block took beyond what there was, in bytes."""

    beyond = 0


@contextmanager
def watched() -> Iterator[PeakMemory]:
    peak, before, ended = PeakMemory(), private_bytes(), threading.Event()

    def watch() -> None:
        took = 0.0
        while not ended.wait(max(0.002, took)):  # a look keeps others from mapping memory
            began = time.perf_counter()
            peak.beyond = max(peak.beyond, private_bytes() - before)
            took = time.perf_counter() - began

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        ended.set()
        watcher.join()
