"""Models that come from storage more slowly than other workers wait for them."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rljob_api.vocabulary.quantity import format_bytes

log = logging.getLogger(__name__)

_PART = 0.5
"""Part of the deadline after which it is said: there is time to look."""
STORAGE_COUNTS = Path("/proc/self/io")


@contextmanager
def slow_reading_named(deadline_seconds: float) -> Iterator[None]:
    """A block in which models are read. Where it lasts, the log says how much has come, and what will end the
    attempt. deadline_seconds: how long a worker waits for others in a collective."""
    waited = _PART * deadline_seconds
    before, began = _bytes_from_storage(), time.monotonic()

    def tell() -> None:
        now, seconds = _bytes_from_storage(), time.monotonic() - began
        come = ""
        if before is not None and now is not None:
            size = now - before
            come = f"{format_bytes(size)} have come from this machine's storage, "
            come += f"{format_bytes(int(size / seconds))} a second; "
        log.warning(
            "models are still being read after %.0f s: %sworkers that have theirs wait %.0f s for others and then end "
            "the attempt; put the models on faster storage, or raise dataBuffer.deadlineSeconds",
            seconds,
            come,
            deadline_seconds,
        )

    timer = threading.Timer(waited, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _bytes_from_storage() -> int | None:
    """What this process has read of it; what other processes have read before is in memory, and is not in this. None
    where the kernel does not count, or does not say."""
    try:
        text = STORAGE_COUNTS.read_text()
    except OSError:
        return None
    match = re.search(r"^read_bytes: (\d+)$", text, re.MULTILINE)
    return int(match.group(1)) if match else None
