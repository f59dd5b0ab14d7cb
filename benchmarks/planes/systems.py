"""What every data plane is to the benchmark: processes by role that do one thing on request."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from process_usage import cpu_seconds

ONE_POD, TWO_PODS = "one pod", "two pods"


class System(Protocol):
    """One data plane at work on one case."""

    name: str

    def tell(self, action: str, step: int) -> list[dict[str, Any]]:
        """put, get, copy, read, verify, release: the answers of all whom it concerns (`rows.act`)."""
        ...

    def processes(self) -> Mapping[str, Sequence[int]]:
        """What each process is, and its number."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Turn:
    """One round trip of one system."""

    put: float
    get: float
    copy: float
    """Out of shared memory, where `get` leaves rows there."""
    read: float
    cpu: float
    wire: int
    """Bytes over the loopback device."""

    @property
    def round_trip(self) -> float:
        return self.put + self.get + self.copy


def take_turn(system: System, step: int) -> tuple[Turn, list[list[float]]]:
    """Put, get, copy out and read once; what was read as sums. The rows are not released."""
    numbers = [number for group in system.processes().values() for number in group]
    before, wire = cpu_of(numbers), loopback_bytes()
    put, get, copy = (span(system.tell(action, step)) for action in ("put", "get", "copy"))
    after, wire = cpu_of(numbers), loopback_bytes() - wire
    cpu = sum(after[number] - before[number] for number in after)
    answers = system.tell("read", step)
    return Turn(put, get, copy, span(answers), cpu, wire), [answer["found"] for answer in answers]


def cpu_of(processes: Sequence[int]) -> dict[int, float]:
    """CPU seconds of the processes that are still there: Ray ends workers that have nothing to do."""
    result = {}
    for number in processes:
        with contextlib.suppress(OSError):
            result[number] = cpu_seconds(number)
    return result


def span(answers: Sequence[Mapping[str, Any]]) -> float:
    """Seconds from the first begin to the last end; 0 where nobody had anything to do."""
    if not answers:
        return 0.0
    return float(max(answer["end"] for answer in answers) - min(answer["begin"] for answer in answers))


def loopback_bytes() -> int:
    """Sent by the loopback device of this network namespace (/sys shows that of another one)."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    return next(int(line.split()[9]) for line in lines if line.strip().startswith("lo:"))


def reset_peaks(system: System) -> None:
    """Peak memory counts from now on (proc(5), clear_refs)."""
    for group in system.processes().values():
        for number in group:
            with contextlib.suppress(OSError):
                Path(f"/proc/{number}/clear_refs").write_text("5")


def peaks(system: System) -> dict[str, int]:
    """Most resident bytes of each kind of process, the largest of several."""
    return {name: max(map(peak_bytes, group)) for name, group in system.processes().items() if group}


def peak_bytes(process: int) -> int:
    """0 for a process that has ended."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)
    return 0
