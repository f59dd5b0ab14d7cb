"""Hosts with links of their own: a network namespace behind a token bucket each."""

from __future__ import annotations

import contextlib
import json
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from process_usage import cpu_seconds
from shaped_links import data_buffer_in, shaped

from rljob_api.planning.plan import Plan
from rljob_worker.databuffer.tests.gang import Gang
from synced_weights.team import SyncTeam, plan_for

PORT, SCRAPED = 7001, 7002
RECEIVER_LINKS = 6


@contextlib.contextmanager
def linked(plan: Plan, directory: Path, megabits: float) -> Iterator[Gang]:
    """Every data buffer in a network namespace; the receiver's link is RECEIVER_LINKS as fast as the others."""
    gang = Gang(plan, directory)
    gang.write_files()
    speeds = [megabits * (RECEIVER_LINKS if name == "rollout" else 1) for name, _ in gang.hosts()]
    with shaped(speeds) as places:
        address_book: dict[str, list[str]] = {}
        try:
            for (name, host), place in zip(gang.hosts(), places, strict=True):
                environment = gang.environment(name, host) | {
                    "RLJOB_BUFFER_PORT": str(PORT),
                    "RLJOB_METRICS_PORT": str(SCRAPED),
                }
                gang.processes[f"{name}-{host}"] = data_buffer_in(place, environment)
                address_book.setdefault(name, []).append(f"{place.address}:{PORT}")
            for process in gang.processes.values():
                assert process.stdout is not None
                process.stdout.readline()
            (directory / "peers.json").write_text(json.dumps(address_book))
            yield gang
        finally:
            for process in gang.processes.values():
                process.kill()
                process.communicate()


def measure_links(
    sources: int, num_bytes: int, rounds: int, megabits: float, tensor: int = 1
) -> tuple[float, float, int]:
    """Median seconds, cores that the data buffers used, and bytes that went into the worker that got most."""
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as directory,
        linked(plan_for(sources, 1, tensor=tensor), Path(directory), megabits) as gang,
    ):
        team, buffers = SyncTeam(gang, num_bytes), [process.pid for process in gang.processes.values()]
        team.sync(1)
        before = sum(map(cpu_seconds, buffers))
        seconds = [team.sync(version) for version in range(2, rounds + 2)]
        used = sum(map(cpu_seconds, buffers)) - before
        team.close()
    return statistics.median(seconds), used / sum(seconds), team.most_received


def show_links(numbers: list[int], num_bytes: int, rounds: int, megabits: float, tensor: int) -> None:
    """tensor: workers of the receiver, which share one copy."""
    print(
        f"{'sources':>8}{'MB':>7}{'s':>8}{'MB/s':>8}{'of N links':>12}{'of the receiver':>17}{'cores':>7}"
        f"{'MB into one worker':>20}"
    )
    one = 0.0
    for sources in numbers:
        seconds, cores, into_one = measure_links(sources, num_bytes, rounds, megabits, tensor)
        speed = num_bytes / seconds
        one = one or speed / sources
        limit = megabits * RECEIVER_LINKS * 1e6 / 8
        print(
            f"{sources:>8}{num_bytes / 1e6:>7.0f}{seconds:>8.2f}{speed / 1e6:>8.1f}{speed / one / sources:>12.2f}"
            f"{speed / limit:>17.2f}{cores:>7.2f}{into_one / 1e6:>20.2f}",
            flush=True,
        )
