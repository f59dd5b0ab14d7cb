"""Memory, processes and threads of process groups, as /proc has them."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
GROUP, NUM_THREADS, RESIDENT_PAGES = 2, 17, 21
"""Fields of a process's stat after its name."""


@dataclass(slots=True)
class GroupUsage:
    """What a group uses together."""

    num_tasks: int = 0
    """Processes and threads."""
    resident_bytes: int = 0
    """The sum over processes: memory that they share counts for each."""
    pids: list[int] = field(default_factory=list)

    def proportional_bytes(self) -> int:
        """The sum over processes, where memory of several counts once. Slower to find out than the resident bytes,
        which stand for it where it cannot be read."""
        return sum(map(_proportional_bytes, self.pids))


def usage_of(groups: Collection[int]) -> dict[int, GroupUsage]:
    """By group; none of a group that has no process."""
    result: defaultdict[int, GroupUsage] = defaultdict(GroupUsage)
    for name in os.listdir("/proc"):
        if name.isdigit() and (stat := _stat(int(name))) and (group := int(stat[GROUP])) in groups:
            usage = result[group]
            usage.num_tasks += int(stat[NUM_THREADS])
            usage.resident_bytes += int(stat[RESIDENT_PAGES]) * PAGE_BYTES
            usage.pids.append(int(name))
    return dict(result)


def num_tasks_of(pid: int) -> int:
    """Threads of a process; 0 of one that has ended."""
    stat = _stat(pid)
    return int(stat[NUM_THREADS]) if stat else 0


def _stat(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:  # it has ended meanwhile
        return []


def _proportional_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            return sum(int(line.split()[1]) * 1024 for line in file if line.startswith((b"Pss:", b"SwapPss:")))
    except OSError:
        stat = _stat(pid)
        return int(stat[RESIDENT_PAGES]) * PAGE_BYTES if stat else 0
