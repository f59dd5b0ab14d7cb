"""A gang whose processes are killed at random, again and again: every row exact, memory flat, nothing left, no hang.

    python benchmarks/soak.py MINUTES [--seed 0] [--every 15] [--memory 1Mi] [--spill 4Mi]

Three data buffers as real processes, two of them with a worker that puts rows and one with two that get them, balanced
over a tree of layouts; weights go the other way. Memory holds half of a step's rows, the rest goes to spill files (in
shared memory here, so that no disk is measured). Workers are light: rows and weights are real, computing is not. The
first third of the time nobody is killed, and memory is watched over the steps. Then a process, a worker or a data
buffer, is killed (SIGKILL) about every EVERY seconds; all others must end by name, and the gang starts again after the
last committed step. Every step's rows must have arrived once, with the values that they were made with: a sum of
checksums over all rows is compared with what was put, also where a step was done twice.

Prints a table. Ends with 1 for a wrong row, a hang, a process that ends unnamed, files that are left behind, or memory
that grows by more than 3 % and 2 MiB: in the first third from its first to its last quarter, and after it from the
first five lives to the last five at the same age. Memory is what a process has for itself alone (`Anonymous` of
/proc/PID/smaps_rollup).
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from statistics import median

from killed_gang.job import expected
from killed_gang.lives import Life, Wrong, begin, committed, end, kill_one, live
from killed_gang.memory import MIB, MemorySample, by_name, ends_of_life, has_grown, over_lives

SAME_AGE_SECONDS = 4.0
COMPARED_LIVES = 5
REPORT_SECONDS = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("minutes", type=float)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=float, default=15.0, help="seconds between kills, on average")
    parser.add_argument("--memory", default="1Mi", help="dataBuffer.memory, half of which is for weights")
    parser.add_argument("--spill", default="4Mi", help="dataBuffer.spill.limit; empty: rows wait for memory")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        directory = Path(place)
        try:
            soak(directory, options)
        except Wrong as wrong:
            print(f"WRONG: {wrong}\n{(directory / 'errors').read_text()[-2000:]}", flush=True)
            return 1
    return 0


def soak(directory: Path, options: argparse.Namespace) -> None:
    """Raises Wrong, in the end or as soon as it is known."""
    begin_at, choice, say = time.monotonic(), random.Random(options.seed), ProgressPrinter()
    quiet = begin(directory, 1, options.memory, options.spill)
    live(quiet, options.minutes * 20, directory, say)
    killed, ends, samples, number = Counter(), list[float](), list[MemorySample](), 1
    life = quiet
    while True:
        killed[kind(kill_one(life, choice))] += 1
        ends.append(end(life))
        check_rows(directory)
        if time.monotonic() - begin_at > options.minutes * 60:
            break
        number += 1
        life = begin(directory, number, options.memory, options.spill)
        live(life, choice.uniform(0.2, 1.8) * options.every, directory, say)
        samples += life.samples
    steps, rows = check_rows(directory, to=committed(directory))
    print(f"{steps:,} steps, {rows:,} rows exact; {sum(killed.values())} kills ({shown(killed)}), {number} lives")
    print(f"all had ended after {median(ends):.1f} s (median), {max(ends):.1f} s (longest)")
    grown = [*table_of_life(quiet.samples), *table_of_lives(samples)]
    if grown:
        raise Wrong(f"memory has grown: {', '.join(grown)}")


class ProgressPrinter:
    """A line now and then."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, life: Life) -> None:
        if time.monotonic() - self._last < REPORT_SECONDS or not life.samples:
            return
        self._last = time.monotonic()
        newest = {sample.name: sample for sample in life.samples}
        memory = ", ".join(f"{name} {sample.num_bytes / MIB:.1f}" for name, sample in newest.items())
        step = max(sample.step for sample in newest.values())
        print(f"{time.strftime('%H:%M')} life {life.number}, step {step:,}; MiB: {memory}", flush=True)


def kind(name: str) -> str:
    return "worker" if " " in name else "data buffer"


def shown(killed: Counter) -> str:
    return ", ".join(f"{count} of a {what}" for what, count in sorted(killed.items()))


def check_rows(directory: Path, to: int = 0) -> tuple[int, int]:
    """Lines that consumers have written; each step up to `to` must be whole. Returns (steps, rows)."""
    seen: dict[int, dict[str, tuple[int, int]]] = defaultdict(dict)
    for path in directory.glob("seen-*"):
        for line in path.read_text().splitlines():
            step, rows, digest = map(int, line.split())
            before = seen[step].setdefault(path.name, (rows, digest))
            if before != (rows, digest):
                raise Wrong(f"step {step} of {path.name} gave {before} in one life and {(rows, digest)} in another")
    for step in range(1, to + 1):
        result = seen[step].values()
        together = sum(rows for rows, _ in result), sum(digest for _, digest in result) % (1 << 64)
        if together != expected(step):
            raise Wrong(f"step {step} gave (rows, digest) {together}, and {expected(step)} were put")
    return to, sum(rows for step in range(1, to + 1) for rows, _ in seen[step].values())


def table_of_life(samples: list[MemorySample]) -> list[str]:
    """Prints memory over the undisturbed life; returns who has grown."""
    print("| without kills | step | MiB | step | MiB |\n|---|--:|--:|--:|--:|")
    grown = []
    for name, mine in by_name(samples).items():
        first, before, after = ends_of_life(mine)
        print(f"| {name} | {first.step:,} | {before / MIB:.1f} | {mine[-1].step:,} | {after / MIB:.1f} |")
        grown += [name] * has_grown(before, after)
    return grown


def table_of_lives(samples: list[MemorySample]) -> list[str]:
    """Prints memory over all lives at the same age; returns who has grown."""
    print(f"| at {SAME_AGE_SECONDS:.0f} s of age | lives | MiB, first {COMPARED_LIVES} | MiB, last {COMPARED_LIVES} |")
    print("|---|--:|--:|--:|")
    grown = []
    for name, result in over_lives(samples, SAME_AGE_SECONDS).items():
        before, after = median(result[:COMPARED_LIVES]), median(result[-COMPARED_LIVES:])
        print(f"| {name} | {len(result)} | {before / MIB:.1f} | {after / MIB:.1f} |")
        grown += [f"{name} over lives"] * has_grown(before, after)
    return grown


if __name__ == "__main__":
    sys.exit(main())
