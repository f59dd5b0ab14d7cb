"""The steady state of a schedule as text: a line per worker group, stages as blocks with their step. Pure.

             0 s       20        40        60        80        100       120
    rollout  [============rollout 5===========]|[===========rollout 6===========]|    0% idle
    train    [===update 4===]                   [===update 5===]                     52% idle
             | reward

A block too short for the name of its stage has a letter of it, then only brackets, then `|`; a line below says which is
which. A block cut by either end of the timeline has no bracket there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor, log10

from rljob_api.planning.costs.timeline import WEIGHT_SYNC, StageRun, StageTimes, Timeline
from rljob_api.planning.plan import Plan
from rljob_worker.cli.plan.sheet import paragraph

MOST_COLUMNS = 100
"""A timeline is not wider, however wide the terminal is."""

_GAP = "  "
_IDLE = "100% idle"
_LEAST_CELLS = 10
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True)
class TimelineView:
    """What `rljob plan --times` shows."""

    plan: Plan
    times: StageTimes
    timeline: Timeline

    @property
    def title(self) -> str:
        """What kind of timeline it is."""
        return "Timeline of the steady state, at the times given"

    def lines(self, width: int) -> list[str]:
        """Without the title; of at most `width` characters, and of at most MOST_COLUMNS."""
        width = min(width, MOST_COLUMNS)
        texts = (self._step_sentence(), self._times_sentence(), self._untimed_sentence())
        return [*self._drawing(width), "", *(line for text in texts if text for line in paragraph(text, width))]

    def _drawing(self, width: int) -> Iterator[str]:
        """The axis, a line per group, and what the marks in them mean."""
        names = [group.name for group in self.plan.groups]
        indent = max(map(len, names))
        num_cells = max(_LEAST_CELLS, width - indent - 2 * len(_GAP) - len(_IDLE))
        yield f"{'':{indent}}{_GAP}{axis(self.timeline.length, num_cells)}".rstrip()
        letters = letters_of([*(stage.name for stage in self.plan.stages), WEIGHT_SYNC])
        legend = dict[str, None]()
        for name in names:
            runs = [run for run in self.timeline.runs if run.group == name]
            cells, marks = blocks(runs, self.timeline.length, num_cells, letters)
            legend |= dict.fromkeys(marks)
            idle = f"{round(100 * self.timeline.idle[name])}% idle"
            yield f"{name:{indent}}{_GAP}{cells}{_GAP}{idle:>{len(_IDLE)}}"
        for line in paragraph(", ".join(legend), width - indent - len(_GAP)):
            yield f"{'':{indent}}{_GAP}{line}"

    def _step_sentence(self) -> str:
        seconds, synchronous = self.timeline.seconds_per_step, self.timeline.synchronous_seconds
        sentence = f"A step takes {format_seconds(seconds)}"
        if not self.plan.staleness:
            return f"{sentence}."
        sentence += f" with rollout.maxStaleness {self.plan.staleness}, and {format_seconds(synchronous)} with 0"
        if synchronous == seconds:
            return f"{sentence}: nothing is gained."
        return f"{sentence}: {float(synchronous / seconds):.2f} times as many steps in the same time."

    def _times_sentence(self) -> str:
        given = [f"{name} {format_seconds(seconds)}" for name, seconds in self.times.stages.items()]
        if self.times.weight_sync:
            given.append(f"{WEIGHT_SYNC} {format_seconds(self.times.weight_sync)}")
        return f"Times given: {', '.join(given)}."

    def _untimed_sentence(self) -> str:
        untimed = [stage.name for stage in self.plan.stages if stage.name not in self.times.stages]
        return f"Without a time, and so taken to need 0 s: {', '.join(untimed)}." if untimed else ""


def timeline_json(timeline: Timeline) -> dict[str, object]:
    """The numbers, in seconds and as shares of 1, as `rljob plan --json` has them."""
    return {
        "secondsPerStep": float(timeline.seconds_per_step),
        "synchronousSecondsPerStep": float(timeline.synchronous_seconds),
        "idle": {group: float(share) for group, share in timeline.idle.items()},
        "length": float(timeline.length),
        "runs": [
            {
                "group": run.group,
                "stage": run.stage,
                "step": run.step,
                "start": float(run.start),
                "end": float(run.end),
            }
            for run in timeline.runs
        ],
    }


def letters_of(names: Sequence[str]) -> dict[str, str]:
    """A letter for each name, of its own letters where one is left; `?` where none of the alphabet is."""
    letters = dict[str, str]()
    for name in dict.fromkeys(names):
        choices = (letter for letter in name + _LETTERS if letter.isalpha() and letter not in letters.values())
        letters[name] = next(choices, "?")
    return letters


def blocks(
    runs: Sequence[StageRun], length: Fraction, num_cells: int, letters: Mapping[str, str]
) -> tuple[str, list[str]]:
    """The line of a group, and what its marks mean, `r reward`. runs: in the order in which they run."""
    cells, end, marks = [" "] * num_cells, 0, list[str]()
    for run in runs:
        first, stop = (round(at / length * num_cells) for at in (max(run.start, Fraction()), run.end))
        first = max(min(first, num_cells - (run.start < run.end)), end)
        stop = min(max(stop, first + 1), num_cells)  # a stage that takes any time is seen
        if first >= stop:
            continue
        text, mark = _block(run, stop - first, letters, is_cut=(run.start < 0, run.end > length))
        cells[first:stop], end = text, stop
        marks += [f"{mark} {run.stage}"] * bool(mark)
    return "".join(cells), marks


def _block(run: StageRun, size: int, letters: Mapping[str, str], is_cut: tuple[bool, bool]) -> tuple[str, str]:
    """`size` characters, and what stands for the stage among them; empty where its name does."""
    if size == 1:
        return ("=", "") if any(is_cut) else ("|", "|")
    left, right = ("" if is_cut[0] else "["), ("" if is_cut[1] else "]")
    room, letter = size - len(left) - len(right), letters[run.stage]
    texts = ((f"{run.stage} {run.step}", ""), (f"{letter}{run.step}", letter), (letter, letter), ("", "[]"))
    text, mark = next((text, mark) for text, mark in texts if len(text) <= room)
    return f"{left}{text:=^{room}}{right}", mark


def axis(length: Fraction, num_cells: int) -> str:
    """Round numbers of seconds where they are, the first with its unit."""
    least = float(length) * 10 / num_cells  # a number has ten characters at least
    power = 10.0 ** floor(log10(least))
    distance = Fraction(next(factor for factor in (1, 2, 5, 10) if factor * power >= least)) * Fraction(repr(power))
    line = "0 s"
    for tick in range(1, floor(length / distance) + 1):
        cell, text = round(tick * distance / length * num_cells), format_number(tick * distance)
        if len(line) < cell <= num_cells - len(text):
            line = f"{line:{cell}}{text}"
    return line


def format_seconds(seconds: Fraction) -> str:
    """`0.25 s`, `62 s`, `1,234.5 s`."""
    return f"{format_number(seconds)} s"


def format_number(number: Fraction) -> str:
    """Three digits below 1, one behind the point above, and none where the number is whole."""
    if number.denominator == 1:
        return f"{number.numerator:,}"
    return f"{float(number):.3g}" if number < 1 else f"{float(number):,.1f}"
