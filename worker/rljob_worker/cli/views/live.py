"""A run as one live table on a terminal."""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rljob_worker.cli.output import silence
from rljob_worker.cli.views.figures import (
    MISSING,
    StepWarnings,
    count,
    duration,
    format_number,
    idle_times,
    size,
)
from rljob_worker.local.watching.progress import MetricsTail, RunProgress
from rljob_worker.rundir.directory import RUNNING_PHASES, RunDirectory, RunNote

NUM_ROWS = 12
"""Recent steps shown."""

# title, metric, how it is written
COLUMNS = (
    ("reward", "reward/mean", format_number),
    ("validation", "validation/accuracy", format_number),
    ("loss", "loss/policy", format_number),
    ("KL", "kl/reference", format_number),
    ("entropy", "policy/entropy", format_number),
    ("clip", "policy/clip_fraction", format_number),
    ("length", "response_length/mean", format_number),
    ("tok/s", "throughput/tokens_per_second", count),
    ("time", "time/step_seconds", duration),
    ("data", "data/bytes_total", size),
)

LEAST_NEEDED_FIRST = ("entropy", "clip", "data", "length", "tok/s", "KL", "loss", "validation")
"""Columns that a narrow terminal does without, in this order."""

STYLES = {"Running": "green", "Starting": "yellow", "Restarting": "yellow", "Stopping": "yellow", "Failed": "red"}


class LiveView:
    """Redraws a few times a second; what happened scrolls above the table."""

    def __init__(
        self,
        directory: RunDirectory,
        total_steps: int,
        stages: tuple[str, ...],
        console: Console,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self._console = console
        self._directory = directory
        self._tail = MetricsTail(directory.metrics)
        self._total_steps = total_steps
        self._stages = stages
        self._warnings = StepWarnings(weights)
        self._note: RunNote | None = None
        self._moved_seconds = time.monotonic()
        self._live = Live(console=console, auto_refresh=False, transient=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def note(self, note: RunNote) -> None:
        self._note = note
        self.tick()

    def say(self, text: str) -> None:
        with self._on_terminal():
            self._live.console.print(text, highlight=False, markup=False)

    def tick(self) -> None:
        if fresh := self._tail.poll():
            self._moved_seconds = time.monotonic()
            for record in fresh:
                for line in self._warnings.lines(record):
                    self.say(line)
        if self._note is not None:
            progress = RunProgress(self._tail.records, self._total_steps, self._stages)
            waited_seconds = time.monotonic() - self._moved_seconds
            with self._on_terminal():
                self._live.update(picture(self._note, progress, waited_seconds), refresh=True)

    def close(self) -> None:
        self.tick()
        with self._on_terminal():
            self._live.stop()

    @contextlib.contextmanager
    def _on_terminal(self) -> Iterator[None]:
        """A closed terminal ends the drawing, not the run."""
        try:
            yield
        except OSError:
            silence()


def picture(note: RunNote, progress: RunProgress, waited_seconds: float) -> RenderableType:
    """Head, recent steps, the step under way, and where the time of the last step went."""
    return Group(_head(note, progress), StepTable(note, progress, waited_seconds), _stages(progress))


def _head(note: RunNote, progress: RunProgress) -> RenderableType:
    head = Table.grid(padding=(0, 2))
    bar = ProgressBar(total=max(1, note.total_steps), completed=progress.step, width=24)
    doing = f": {note.doing}" if note.doing and note.phase == "Starting" else ""
    phase = Text(note.phase + doing, style=STYLES.get(note.phase, "bold"))
    attempt = f"attempt {note.attempt}" + (f", restarts {note.restarts}" if note.restarts else "")
    left = f"ETA {duration(progress.eta_seconds())}"
    head.add_row(Text(note.name, style="bold"), phase, bar, f"step {progress.step}/{note.total_steps}", left, attempt)
    return head


@dataclass(frozen=True, slots=True)
class StepTable:
    """Recent steps and the one under way, with as many columns as the terminal has room for."""

    note: RunNote
    progress: RunProgress
    waited_seconds: float

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        hidden = [title for title, metric, _ in COLUMNS if self.progress.latest(metric) is None and title != "time"]
        for title in (None, *LEAST_NEEDED_FIRST):
            hidden += [title] if title else []
            table = self._table(hidden)
            if console.measure(table, options=options.update(max_width=1000)).maximum <= options.max_width:
                break
        yield table

    def _table(self, hidden: Sequence[str]) -> Table:
        columns = [column for column in COLUMNS if column[0] not in hidden]
        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1))
        for title in ("step", *(title for title, _, _ in columns)):
            table.add_column(title, justify="right", no_wrap=True)
        for record in self.progress.records[-NUM_ROWS:]:
            table.add_row(str(record["step"]), *(write(record.get(metric)) for _, metric, write in columns))
        if self.note.phase in RUNNING_PHASES and self.progress.step < self.note.total_steps:
            step = self.progress.step + 1 if self.progress.records else 0
            waited = [duration(self.waited_seconds) if title == "time" else "" for title, _, _ in columns]
            table.add_row(str(step), *waited, style="dim")
        return table


def _stages(progress: RunProgress) -> Text:
    """Seconds per stage of the last step, the longest first."""
    if not progress.records:
        return Text("loading models and data", style="dim")
    stages = sorted(progress.stage_seconds(progress.records[-1]).items(), key=lambda item: -item[1])
    best = progress.best("reward/mean")
    said = [f"{name} {duration(seconds)}" for name, seconds in stages]
    if (idle := idle_times(progress.records[-1])) != MISSING:
        said.append(f"idle {idle}")
    if best:
        said.append(f"best reward {format_number(best[1])} at step {best[0]}")
    return Text(" · ".join(said), style="dim")
