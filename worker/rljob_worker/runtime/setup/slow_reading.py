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


@contextmanager
def slow_reading_named(deadline_seconds: float) -> Iterator[None]:
    """A block in which models are read. Where it lasts, the log says how much has come, and what will end the
    attempt. deadline_seconds: how long a worker waits for others in a collective."""
    waited = _PART * deadline_seconds
    before, began = _bytes_from_storage(), time.monotonic()

    def tell() -> None:
        size, seconds = _bytes_from_storage() - before, time.monotonic() - began
        log.warning(
            "models are still being read after %.0f s: %s have come from this machine's storage, %s a second; workers "
            "that have theirs wait %.0f s for others and then end the attempt; put the models on faster storage, or "
            "raise dataBuffer.deadlineSeconds",
            seconds,
            format_bytes(size),
            format_bytes(int(size / seconds)),
            deadline_seconds,
        )

    timer = threading.Timer(waited, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _bytes_from_storage() -> int:
    """What this process has read of it; what other processes have read before is in memory, and is not in this."""
    match = re.search(r"^read_bytes: (\d+)$", Path("/proc/self/io").read_text(), re.MULTILINE)
    return int(match.group(1)) if match else 0
