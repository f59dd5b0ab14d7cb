"""Private memory of processes over time, and whether it grows. Judging is pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

MIB = 1 << 20
WARM_UP = 0.2
"""Of a life: pools and caches fill."""
ALLOWED_PART, ALLOWED_BYTES = 0.03, 2 * MIB
"""What a process may have grown by, whichever is more."""


@dataclass(frozen=True)
class MemorySample:
    """One look at a process."""

    life: int
    name: str
    age_seconds: float
    step: int
    num_bytes: int


def private_bytes(pid: int) -> int | None:
    """Anonymous memory, from smaps_rollup: what a process has for itself alone. None once it is gone.

    Not `Private_Dirty`: there a page of shared memory counts while only one process happens to map it.
    """
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous:")), None)


def has_grown(before: float, after: float) -> bool:
    return after - before > max(ALLOWED_BYTES, ALLOWED_PART * before)


def ends_of_life(samples: Sequence[MemorySample]) -> tuple[MemorySample, float, float]:
    """The first sample after warming up, and the medians of the first and the last quarter from there on."""
    warm = samples[int(len(samples) * WARM_UP) :]
    quarter = max(1, len(warm) // 4)
    first, last = ([sample.num_bytes for sample in part] for part in (warm[:quarter], warm[-quarter:]))
    return warm[0], median(first), median(last)


def by_name(samples: Iterable[MemorySample]) -> dict[str, list[MemorySample]]:
    result = defaultdict(list)
    for sample in samples:
        result[sample.name].append(sample)
    return dict(result)


def over_lives(samples: Iterable[MemorySample], age_seconds: float) -> Mapping[str, list[int]]:
    """Memory of each process at an age, one entry per life; lives that were shorter are left out."""
    at_age: dict[tuple[str, int], MemorySample] = {}
    for sample in samples:
        if sample.age_seconds >= age_seconds:
            at_age.setdefault((sample.name, sample.life), sample)
    result = defaultdict(list)
    for (name, _), sample in sorted(at_age.items()):
        result[name].append(sample.num_bytes)
    return dict(result)
