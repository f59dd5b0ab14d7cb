"""What a worker does before its first step, as lines of its log for those who wait for it.

2026-11-22 17:00:00,000 INFO rljob.start: tokenizer ...
2026-11-22 17:00:00,312 INFO rljob.start: tokenizer: 512 tokens, in 0.3 s
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_log = logging.getLogger("rljob.start")


@dataclass
class StartPhase:
    """One of them; who is inside says what it found."""

    found: str = ""


@contextmanager
def phase(name: str, clock: Callable[[], float] = time.perf_counter) -> Iterator[StartPhase]:
    """Tells of its begin, and of its end with how long it took."""
    _log.info("%s ...", name)
    began, start_phase = clock(), StartPhase()
    yield start_phase
    result = f"{start_phase.found}, " if start_phase.found else ""
    _log.info("%s: %sin %.1f s", name, result, clock() - began)
