"""What a case takes of the machine's memory in each system, so that none is started that would be killed."""

from __future__ import annotations

from pathlib import Path

from planes.rows import RowCase
from planes.systems import ONE_POD

GIB = 1 << 30
PROCESSES_BYTES = GIB
"""Of all processes of a system with nothing to do, about."""
TIMES = {
    "rljob": (3.3, 4.6),
    "rljob, unchecked": (3.3, 4.6),
    "memcpy": (2.0, 2.0),
    "shared memory": (3.0, 3.0),
    "TCP": (2.1, 2.1),
    "Flight stream": (2.3, 2.3),
    "Ray": (8.0, 11.0),
    "TransferQueue": (6.8, 6.8),
    "siiRL": (6.5, 8.0),
    "verl": (12.0, 12.0),
}
"""How many times the bytes of a case a system takes in one pod and in two, the rows that were made among them: what its
processes had resident at 302 MB and at 2 GB, without the pages that they share."""


def needed(name: str, case: RowCase, place: str) -> int:
    """Bytes that the system takes, about. verl pads ragged rows to the longest, half as long again as the mean."""
    times = TIMES[name][0 if place == ONE_POD else 1]
    padding = 1.5 if name == "verl" and not case.is_padded else 1.0
    return int(times * padding * case.num_bytes) + PROCESSES_BYTES


def available(meminfo: str | None = None) -> int:
    """Bytes that can be had without swapping; files in shared memory count as taken."""
    lines = (Path("/proc/meminfo").read_text() if meminfo is None else meminfo).splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))


def refusal(name: str, case: RowCase, place: str, free: int) -> str | None:
    """Why a system is not measured on a case, or None."""
    most = needed(name, case, place)
    if most <= free:
        return None
    return f"{name}: not measured: needs {most / GIB:.0f} GiB, {free / GIB:.0f} are free"
