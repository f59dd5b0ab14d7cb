"""Reports and verdicts of a job of many hosts: what a step costs the lead, and how long a verdict takes.

    python benchmarks/control.py [--hosts 1 32 1024] [--steps 50] [--repeats 5]

Real: the data buffer of the lead's host and, where there are three levels, that of one host below it (processes with
the settings of a job, fan-out 32); the lead with its judge and recorder, in a process that does nothing else; the
other workers of these hosts. Emulated: every host that one of the two speaks to, all in this process, each with a
Flight server and a link of its own; what the hosts below those have to say is merged in advance, and they hear
nothing. Every worker reports 60 metrics and two samples.

Steps follow each other at once. A leaf reports last: the verdict takes from there until that leaf hears it. CPU is of
whole processes, kernel time included. Waiting is CPU while all but that leaf have reported. Then what the lead used
to do with 8,192 reports, in turns with what it and its data buffer do now.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable, Sequence

from emulated_job.job import SETTLING_SECONDS, Cpu, running
from emulated_job.reports import WORKERS_PER_HOST, payload_below, plan_for, report_of

from rljob_worker.databuffer.routes.job_tree import JobTree
from rljob_worker.metrics.report import Report, merge_reports, report_from_bytes, report_to_bytes
from rljob_worker.metrics.scalars import Scalar, merge_all

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


# ---- what it used to be


def old_report(report: Report) -> str:
    metrics = {name: [s.kind, s.sum, s.count, s.max] for name, s in report.metrics.items()}
    return json.dumps({"metrics": metrics, "samples": report.samples})


def read_all(texts: Sequence[str]) -> None:
    """What the lead did, all reports at once."""
    reports = [json.loads(text) for text in texts]
    merge_all({name: Scalar(*parts) for name, parts in report["metrics"].items()} for report in reports)


def compare(num_hosts: int, repeats: int) -> None:
    """CPU time of one thread."""
    shape = JobTree.of(plan_for(num_hosts))
    texts = [old_report(report_of(ordinal)) for ordinal in range(num_hosts * WORKERS_PER_HOST)]
    own = [report_to_bytes(report_of(ordinal), ordinal) for ordinal in range(WORKERS_PER_HOST)]
    climbed = own + [payload_below(shape, child) for child in shape.children(shape.root)]
    merged = merge_reports(climbed)
    size = sum(map(len, texts))
    kinds: dict[str, Callable[[], object]] = {
        f"before: the lead reads and merges {len(texts):,} reports, {size / 1e6:.1f} MB": lambda: read_all(texts),
        f"its data buffer merges {len(climbed)}, {sum(map(len, climbed)) / 1e6:.2f} MB": lambda: merge_reports(climbed),
        f"the lead reads one, {len(merged) / 1e6:.2f} MB": lambda: report_from_bytes(merged),
    }
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(repeats):
        for kind, call in kinds.items():
            gc.collect()
            begin = time.thread_time()
            call()
            seconds[kind].append(1e3 * (time.thread_time() - begin))
    print(f"\n| {num_hosts} × {WORKERS_PER_HOST} | ms |\n|---|--:|")
    for kind, numbers in seconds.items():
        print(f"| {kind} | {spread(numbers)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 32, 1024])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(
        "| hosts × workers | lead's data buffer, ms | judging, ms | lead's process, ms | host below, ms "
        "| waiting: both | verdict, ms | report, ms | connections |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|",
        flush=True,
    )
    for num_hosts in options.hosts:
        measure(num_hosts, options.steps)
    compare(max(options.hosts), options.repeats)


if __name__ == "__main__":
    main()
