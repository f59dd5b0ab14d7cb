"""What the system knows of a process."""

from __future__ import annotations

import os
import time
from pathlib import Path


def cpu_seconds(process: int | None) -> float:
    """User and system time of all threads of a process, those that have ended among them."""
    return 0.0 if process is None else time.clock_gettime((~process << 3) | 2)  # CPUCLOCK_SCHED of linux/posix-timers.h


def connections(process: int) -> int:
    """Established TCP connections."""
    links = [os.readlink(entry) for entry in Path(f"/proc/{process}/fd").iterdir() if entry.is_symlink()]
    sockets = {link.removeprefix("socket:[").rstrip("]") for link in links if link.startswith("socket:[")}
    lines = (Path(f"/proc/{process}/net/{name}").read_text().splitlines() for name in ("tcp", "tcp6"))
    rows = [line.split() for file in lines for line in file]
    return sum(row[3] == "01" and row[9] in sockets for row in rows)
