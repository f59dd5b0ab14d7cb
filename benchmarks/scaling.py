"""One job on 2 to 64 pods whose rows are balanced between all of them, over data buffers. As root.

    python benchmarks/scaling.py [--pods 2 4 8 16 32 64] [--steps 3] [--rows 4] [--tokens 32768] [--write]

Real: the data buffers, a process each, every value of every row, the routes, the reports and the verdicts. Emulated:
computing is waiting, of a length that the tokens and `--speed` give; a host is a namespace behind a token bucket in
both directions; all pods share this machine's cores, so links and computing are slow enough, in equal measure, that
these are not the limit. Weak scaling: every pod has `--rows` rows, whose bytes over its link take the seconds that are
printed first.

A step lasts from the end of the last pod's to the end of the next, after one to warm up. `efficiency`: tokens per
second and pod, against the first number of pods. `cores`: of the data buffers and the waiting workers together. `CPU`:
of that, for a pod and a step; `busiest`: of the data buffer that took most. `link`: what the busiest link sent and
received. --write puts the table into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import docs_section
from scaled_jobs import ours
from scaled_jobs.load import JobLoad, Measured

HEADS = ("pods", "step s", "tokens/s", "computing", "efficiency", "cores", "CPU ms", "busiest ms")
HEADS += ("link out MB", "link in MB", "memory MB", "steps")


def table(measured: Sequence[Measured]) -> list[str]:
    """Markdown; efficiency against the first."""
    lines = ["| " + " | ".join(HEADS) + " |", "|--:" * len(HEADS) + "|"]
    return lines + ["| " + " | ".join(row(item, measured[0])) + " |" for item in measured]


def row(item: Measured, first: Measured) -> list[str]:
    load = item.load
    efficiency = item.tokens_per_second / load.pods / (first.tokens_per_second / first.load.pods)
    return [
        str(load.pods),
        f"{item.step_seconds:.2f}",
        f"{item.tokens_per_second:,.0f}",
        f"{load.compute_seconds / item.step_seconds:.1%}",
        f"{efficiency:.1%}",
        f"{item.cores:.2f}",
        f"{item.cores * item.step_seconds / load.pods * 1e3:.0f}",
        f"{item.busiest_seconds * 1e3:.0f}",
        f"{item.sent / 1e6:.2f}",
        f"{item.received / 1e6:.2f}",
        f"{item.memory / 1e6:.0f}",
        str(item.steps),
    ]


def described(load: JobLoad) -> str:
    """What every pod has to do."""
    return (
        f"A pod: {load.rows} rows of {load.tokens:,} tokens in the mean, {load.pod_bytes / 1e6:.2f} MB a step, "
        f"{load.link_seconds:.2f} s on its link of {load.megabits:g} Mbit/s; {load.compute_seconds:.2f} s of "
        f"computing. Load {os.getloadavg()[0]:.1f} at the start."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, nargs="+", default=[2, 4, 8, 16, 32, 64])
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--rows", type=int, default=4, help="of every pod")
    parser.add_argument("--tokens", type=int, default=32768, help="mean of a row")
    parser.add_argument("--megabits", type=float, default=16.0, help="of every link, in both directions")
    parser.add_argument("--speed", type=float, help="tokens that a pod computes in a second: 384 for each Mbit/s")
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    options = parser.parse_args()
    if os.geteuid() or sys.platform != "linux":
        sys.exit("namespaces and shaped links need Linux and root")
    speed = options.speed or 384 * options.megabits
    loads = [JobLoad(pods, options.rows, options.tokens, options.megabits, speed) for pods in options.pods]
    head, measured = described(loads[0]), list[Measured]()
    print(head, flush=True)
    for load in loads:
        measured.append(ours.measure(load, options.steps))
        lines = table(measured)
        print("\n".join(lines[-1:] if len(measured) > 1 else lines), flush=True)
    if options.write:
        docs_section.write("scaling", [head, "", *table(measured)])


if __name__ == "__main__":
    main()
