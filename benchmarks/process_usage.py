"""What the system knows of a process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
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


def cpu_seconds_in_turns(steps: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """CPU seconds of each step, in turns, after one round that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for index in range(rounds + 1):
        for name, step in steps.items():
            started = time.process_time()
            step()
            if index:
                seconds[name].append(time.process_time() - started)
    return seconds


def process_file(pid: int, name: str) -> bytes:
    """A file of /proc; empty for a process that has ended."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def parents() -> dict[int, int]:
    """The parent of every process."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    stats = {pid: process_file(pid, "stat") for pid in pids}
    return {pid: int(stat.rpartition(b")")[2].split()[1]) for pid, stat in stats.items() if stat}


def descendants(ancestor: int) -> list[int]:
    """Processes that a process has started, and those that these have, and so on."""
    by_pid, known = parents(), [ancestor]
    for pid in known:
        known += [child for child, parent in by_pid.items() if parent == pid]
    return known[1:]
