"""Reports and verdicts of a job of many hosts: what a step costs the lead, and how long a verdict takes.

    python benchmarks/control.py [--hosts 1 32 1024] [--steps 50]

Real: the data buffer of the lead's host and, where there are three levels, that of one host below it (processes with
the settings of a job, fan-out 32); the lead with its judge and recorder, in a process that does nothing else; the
other workers of these hosts. Emulated: every host that one of the two speaks to, all in this process, each with a
Flight server and a link of its own; what the hosts below those have to say is merged in advance, and they hear
nothing. Every worker reports 60 metrics and two samples.

Steps follow each other at once. A leaf reports last: the verdict takes from there until that leaf hears it. CPU is of
whole processes, kernel time included. Waiting is CPU while all but that leaf have reported.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

from emulated_job.job import SETTLING_SECONDS, Cpu, running
from emulated_job.reports import WORKERS_PER_HOST

WARM_UP = 5
WAITING_SECONDS = 5.0


def measure(num_hosts: int, steps: int) -> None:
    with running(num_hosts) as job:
        for step in range(1, WARM_UP + 1):
            job.step(step)
        job.report_seconds.clear()
        per_step, verdicts = list[Cpu](), list[float]()
        for step in range(WARM_UP + 1, WARM_UP + 1 + steps):
            before = job.cpu()
            verdicts.append(job.step(step))
            per_step.append(job.cpu().since(before))
        last = WARM_UP + 1 + steps
        job.all_but_the_last(last)
        time.sleep(SETTLING_SECONDS)
        before = job.cpu()
        time.sleep(WAITING_SECONDS)
        waiting = job.cpu().since(before)
        job.the_last(last)
        figures = [
            spread([1e3 * cpu.root for cpu in per_step]),
            spread([1e3 * cpu.judging for cpu in per_step]),
            spread([1e3 * cpu.lead for cpu in per_step]),
            spread([1e3 * cpu.inner for cpu in per_step]) if len(job.processes) > 1 else "",
            f"{100 * waiting.root / WAITING_SECONDS:.1f} %, {100 * waiting.lead / WAITING_SECONDS:.1f} %",
            spread([1e3 * seconds for seconds in verdicts]),
            spread([1e3 * seconds for seconds in job.report_seconds]),
            ", ".join(map(str, job.connections())),
        ]
    print(f"| {num_hosts} × {WORKERS_PER_HOST} | " + " | ".join(figures) + " |", flush=True)


def spread(numbers: Sequence[float]) -> str:
    """Median (least to most)."""
    return f"{statistics.median(numbers):.1f} ({min(numbers):.1f}–{max(numbers):.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 32, 1024])
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args()
    print(
        "| hosts × workers | lead's data buffer, ms | judging, ms | lead's process, ms | host below, ms "
        "| waiting: both | verdict, ms | report, ms | connections |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|",
        flush=True,
    )
    for num_hosts in options.hosts:
        measure(num_hosts, options.steps)


if __name__ == "__main__":
    main()
