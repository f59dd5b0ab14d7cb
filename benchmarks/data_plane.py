"""Our data buffers beside the field's data planes and the machine's ceilings: the same rows, put and got.

    python benchmarks/data_plane.py [--sizes 1 18 288 2048] [--places one two] [--shapes padded ragged]
                                    [--systems rljob ...] [--seconds 10] [--ranks 1 1] [--write]
                                    [--gigabits 10]    as root

Nine float32 columns; every writer and reader is a process. A round trip ends when the reader has all rows in ascending
order, every column contiguous, in arrays of its own: `put` and then `get`, each from the first begin to the last end,
and where `get` leaves rows in shared memory that the reader maps, `copy`; a worker of ours need not wait for that. Then
the reader adds up every value (`read`), and the sums are compared with those of what was written; in the first turn
every byte is.

`one pod`: writer and reader on one host, one data buffer. `two pods`: two data buffers over loopback TCP, two nodes of
Ray. TransferQueue and verl take the same way in both. With --gigabits the loopback device of a network namespace of its
own is a link of that speed, in both directions together. `rljob, unchecked` are data buffers whose rows carry no
checksum. The systems take turns, after one or two to warm up, until a
system has had `--seconds` or ten turns; from 1 GB on one system after the other, and only where there is memory for it.
Milliseconds are medians, and the 95th percentile; CPU is that of all processes of a system in put, get and copy;
`MB sent` is what went over the loopback device. Memory is the most that each kind of process had resident, pages that
it shares with others included: those of a writer hold the rows that were made. --write puts a line for each case into
docs/benchmarks.md, in place of that of the same size, shape and place alone.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import docs_section
import numpy as np
from planes import ceilings, peers, room, rows
from planes.leftovers import shared_directory
from planes.ours import OurDataPlane, Unchecked
from planes.rows import SHAPES, RowCase
from planes.systems import ONE_POD, TWO_PODS, System, Turn, peaks, reset_peaks, take_turn
from shaped_links import shape_own_loopback

OURS = {kind.name: kind for kind in (OurDataPlane, Unchecked)}
PLACES = {"one": ONE_POD, "two": TWO_PODS}
TURNS = 10
WARM_UP_SECONDS = 4.0
"""A second turn warms up where the first took less."""
LARGE = 10**9
"""Bytes of a case whose systems run one after the other."""


class Course:
    """The turns of one system on one case."""

    def __init__(self, system: System, case: RowCase, expected: rows.ExpectedRows, budget: float) -> None:
        self.system, self.case = system, case
        self.turns: list[Turn] = []
        self.peaks: dict[str, int] = {}
        self._expected, self._budget = expected, budget
        self._step = 0
        self._spent = 0.0

    @property
    def is_over(self) -> bool:
        return len(self.turns) >= TURNS or self._spent >= self._budget

    def warm_up(self) -> None:
        """Until nothing is new any more; what arrives in the first turn is compared byte by byte."""
        for number in range(2):
            begin = time.monotonic()
            self._take()
            if number == 0:
                self._expected.check_prints([answer["found"] for answer in self.system.tell("verify", self._step)])
            self.system.tell("release", self._step)
            if time.monotonic() - begin > WARM_UP_SECONDS:
                break
        reset_peaks(self.system)

    def go_on(self) -> None:
        """One turn that counts."""
        turn = self._take()
        self.system.tell("release", self._step)
        self._spent += turn.round_trip
        self.turns.append(turn)
        if self.is_over:
            self.peaks = peaks(self.system)

    def _take(self) -> Turn:
        self._step += 1
        turn, result = take_turn(self.system, self._step)
        self._expected.check_sums(result)
        return turn


class Cases:
    """What runs in one place."""

    def __init__(self, names: Sequence[str], place: str, peers_process: Any, budget: float) -> None:
        self._names, self._place, self._peers, self._budget = names, place, peers_process, budget

    @staticmethod
    @contextlib.contextmanager
    def of(options: argparse.Namespace, names: Sequence[str], place: str, cases: Sequence[RowCase]) -> Iterator[Cases]:
        """Ready for some systems and for cases of this size."""
        theirs = [name for name in names if name in peers.NAMES]
        with peers.running(theirs, options.ranks, place, max(case.num_bytes for case in cases)) as process:
            yield Cases(names, place, process, options.seconds)

    def measure(self, case: RowCase) -> list[Course]:
        """All systems in turn."""
        with shared_directory() as directory:
            source = directory / "rows.npy"
            rows.make(case, source)
            names = [name for name in self._names if is_here(name, case, self._place)]
            return self._in_turn(names, case, source, rows.ExpectedRows(case, source)) if names else []

    def _in_turn(self, names: Sequence[str], case: RowCase, source: Path, expected: rows.ExpectedRows) -> list[Course]:
        with contextlib.ExitStack() as stack:
            courses = []
            for name in names:
                system = self._start(name, case, source)
                stack.callback(system.close)
                courses.append(Course(system, case, expected, self._budget))
            for course in courses:
                course.warm_up()
            while unfinished := [course for course in courses if not course.is_over]:
                for course in unfinished:
                    course.go_on()
        return courses

    def _start(self, name: str, case: RowCase, source: Path) -> System:
        if name in ceilings.WAYS:
            return ceilings.Ceiling(name, case, source)
        if name in OURS:
            return OURS[name](case, self._place, source)
        return peers.PeerSystem(name, case, source, self._peers)


Measured = tuple[RowCase, list[Course], list[str]]
"""With why systems were not measured."""


def measured(options: argparse.Namespace, place: str, cases: Sequence[RowCase]) -> Iterator[Measured]:
    """All systems at once; when their memory would not do for that, each alone, if there is room for it."""
    small = [case for case in cases if case.num_bytes < LARGE]
    if small:
        with Cases.of(options, options.systems, place, small) as here:
            for case in small:
                yield case, here.measure(case), []
    for case in cases:
        if case not in small:
            courses, refused = list[Course](), list[str]()
            for name in options.systems:
                if not is_here(name, case, place):
                    continue
                try:
                    courses += alone(options, name, place, case)
                except NoRoom as error:
                    refused.append(str(error))
                except peers.PeerEnded as error:
                    refused.append(f"{name}: not measured: {error}")
            yield case, courses, refused


def is_here(name: str, case: RowCase, place: str) -> bool:
    """Whether there is such a way in a place."""
    if name in ceilings.WAYS:
        return ceilings.WAYS[name][0] == place and case.num_writers == case.num_readers
    return True


class NoRoom(RuntimeError):
    """The machine would end a process of the system."""


def alone(options: argparse.Namespace, name: str, place: str, case: RowCase) -> list[Course]:
    if (reason := room.refusal(name, case, place, room.available())) is not None:
        raise NoRoom(reason)
    with Cases.of(options, [name], place, [case]) as here:
        return here.measure(case)


HEADS = ("system", "put", "get", "copy", "round trip", "p95", "GB/s", "÷ rljob", "read", "CPU s", "MB sent", "turns")


def table(courses: Sequence[Course], refused: Sequence[str]) -> list[str]:
    """Markdown; the first system is the unit. Below it the memory, and why others are not there."""
    if not courses:
        return [f"{item}.\n" for item in refused]
    unit = middle(courses[0], "round_trip")
    lines = ["| " + " | ".join(HEADS) + " |", "|---" + "|--:" * (len(HEADS) - 1) + "|"]
    lines += ["| " + " | ".join(row(course, unit)) + " |" for course in courses]
    memory = (
        f"{course.system.name}: " + ", ".join(f"{name} {size / 1e6:.0f}" for name, size in course.peaks.items())
        for course in courses
    )
    return [*lines, "", "Most resident MB: " + "; ".join(memory) + ".", *(f"\n{item}." for item in refused)]


def middle(course: Course, name: str) -> float:
    return float(statistics.median(getattr(turn, name) for turn in course.turns))


def row(course: Course, unit: float) -> list[str]:
    whole = middle(course, "round_trip")
    p95 = float(np.percentile([turn.round_trip for turn in course.turns], 95))
    seconds = [*(middle(course, name) for name in ("put", "get", "copy")), whole, p95]
    return [
        course.system.name,
        *(f"{second * 1e3:,.1f}" for second in seconds),
        f"{course.case.num_bytes / whole / 1e9:.3f}",
        f"{whole / unit:.2f}",
        f"{middle(course, 'read') * 1e3:,.1f}",
        f"{middle(course, 'cpu'):.3f}",
        f"{middle(course, 'wire') / 1e6:,.1f}",
        str(len(course.turns)),
    ]


def columns(place: str) -> list[str]:
    """Systems and ceilings that there are in a place."""
    return [OurDataPlane.name, *(name for name, (where, _) in ceilings.WAYS.items() if where == place), *peers.NAMES]


def heads(place: str) -> list[str]:
    cells = ["--sizes", "rows", "rljob: put", "get", *columns(place), "load"]
    return [f"| {' | '.join(cells)} |", "|--:|---|" + "--:|" * (len(cells) - 2)]


def line(case: RowCase, place: str, courses: Sequence[Course], load: float) -> str:
    """A row of docs/benchmarks.md: our `put` and `get`, and every system's round trip with its 95th percentile."""
    result = {course.system.name: course for course in courses}
    mine = result.get(OurDataPlane.name)
    parts = [f"{middle(mine, name) * 1e3:,.1f}" if mine else "–" for name in ("put", "get")]
    shape, size = str(case).split(", ")[::-1]
    cells = [str(case.megabytes), f"{shape}, {size}", *parts]
    cells += [spread(result[name]) if name in result else "–" for name in columns(place)]
    return f"| {' | '.join([*cells, f'{load:.1f}'])} |"


def write(place: str, lines: Sequence[str]) -> None:
    """In place of the lines of the same sizes and shapes."""
    name = next(f"data plane, {short}" for short, long in PLACES.items() if long == place)
    head = heads(place)
    before = docs_section.read(name)[len(head) :]
    docs_section.write(name, [*head, *docs_section.merged(before, lines, 2)])


def spread(course: Course) -> str:
    p95 = float(np.percentile([turn.round_trip for turn in course.turns], 95))
    return f"{middle(course, 'round_trip') * 1e3:,.1f} ({p95 * 1e3:,.1f})"


def main() -> None:
    everything = [*OURS, *ceilings.WAYS, *peers.NAMES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SHAPES), choices=list(SHAPES), help="megabytes")
    parser.add_argument("--places", nargs="+", default=list(PLACES), choices=list(PLACES), help="number of pods")
    parser.add_argument("--shapes", nargs="+", default=["padded", "ragged"], choices=["padded", "ragged"])
    parser.add_argument(
        "--systems", nargs="+", default=[name for name in everything if name != Unchecked.name], choices=everything
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="of each system in each case")
    parser.add_argument("--ranks", type=int, nargs=2, default=[1, 1], help="writers and readers")
    parser.add_argument("--gigabits", type=float, help="of the link between the pods, per second; by default none")
    parser.add_argument("--write", action="store_true", help="put a line for each case into docs/benchmarks.md")
    options = parser.parse_args()
    if options.gigabits is not None:
        shape_own_loopback(options.gigabits)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that all that was started is ended
    begin = time.monotonic()
    cases = [RowCase(size, shape == "padded", *options.ranks) for size in options.sizes for shape in options.shapes]
    load = os.getloadavg()[0]
    print(f"Load {load:.1f} at the start; {' '.join(sys.argv[1:]) or 'no arguments'}.")
    for place in (PLACES[short] for short in options.places):
        for case, courses, refused in measured(options, place, cases):
            print("\n".join(["", f"### {place}, {case}", "", *table(courses, refused), ""]), flush=True)
            if options.write:
                write(place, [line(case, place, courses, load)])
    print(f"{time.monotonic() - begin:.0f} s in all")


if __name__ == "__main__":
    main()
