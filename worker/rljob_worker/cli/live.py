"""A run as one live table on a terminal."""

import contextlib
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rljob_worker.cli.figures import count, duration, number, size
from rljob_worker.cli.output import silence
from rljob_worker.local.progress import MetricsTail, Progress
from rljob_worker.local.rundir import RunDirectory, RunNote

NUM_ROWS = 12
"""Recent steps shown."""

# title, metric, how it is written
COLUMNS = (
    ("reward", "reward/mean", number),
    ("validation", "validation/accuracy", number),
    ("loss", "loss/policy", number),
    ("KL", "kl/reference", number),
    ("entropy", "policy/entropy", number),
    ("clipped", "policy/clip_fraction", number),
    ("length", "response_length/mean", number),
    ("tokens/s", "throughput/tokens_per_second", count),
    ("time", "time/step_seconds", duration),
    ("data", "data/bytes_total", size),
)

STYLES = {"Running": "green", "Starting": "yellow", "Restarting": "yellow", "Stopping": "yellow", "Failed": "red"}


class LiveView:
    """Redraws a few times a second; what happened scrolls above the table."""

    def __init__(self, directory: RunDirectory, total_steps: int, stages: tuple[str, ...], console: Console) -> None:
        self._console = console
        self._directory = directory
        self._tail = MetricsTail(directory.metrics)
        self._total_steps = total_steps
        self._stages = stages
        self._note: RunNote | None = None
        self._moved_seconds = time.time()
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
        if self._tail.poll():
            self._moved_seconds = time.time()
        if self._note is not None:
            progress = Progress(self._tail.records, self._total_steps, self._stages)
            waited_seconds = time.time() - self._moved_seconds
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


def picture(note: RunNote, progress: Progress, waited_seconds: float) -> RenderableType:
    """Head, recent steps, the step under way, and where the time of the last step went."""
    return Group(_head(note, progress), _steps(note, progress, waited_seconds), _stages(progress))


def _head(note: RunNote, progress: Progress) -> RenderableType:
    head = Table.grid(padding=(0, 2))
    bar = ProgressBar(total=max(1, note.total_steps), completed=progress.step, width=24)
    phase = Text(note.phase, style=STYLES.get(note.phase, "bold"))
    attempt = f"attempt {note.attempt}" + (f", {note.restarts} restarts" if note.restarts else "")
    left = f"ETA {duration(progress.eta_seconds())}"
    head.add_row(Text(note.name, style="bold"), phase, bar, f"step {progress.step}/{note.total_steps}", left, attempt)
    return head


def _steps(note: RunNote, progress: Progress, waited_seconds: float) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1))
    table.add_column("step", justify="right", no_wrap=True)
    for title, _, _ in COLUMNS:
        table.add_column(title, justify="right", no_wrap=True)
    for record in progress.records[-NUM_ROWS:]:
        table.add_row(str(record["step"]), *_cells(record))
    if note.phase in ("Starting", "Running", "Stopping") and progress.step < note.total_steps:
        table.add_row(*_current(progress, waited_seconds), style="dim")
    return table


def _cells(record: dict[str, Any]) -> list[str]:
    return [write(record.get(metric)) for _, metric, write in COLUMNS]


def _current(progress: Progress, waited_seconds: float) -> list[str]:
    """The step under way: its number and how long it has taken."""
    cells = ["…" if metric == "time/step_seconds" else "" for _, metric, _ in COLUMNS]
    cells[[metric for _, metric, _ in COLUMNS].index("time/step_seconds")] = duration(waited_seconds)
    return [str(progress.step + 1 if progress.records else 0), *cells]


def _stages(progress: Progress) -> Text:
    """Seconds per stage of the last step, the longest first."""
    if not progress.records:
        return Text("loading models and data", style="dim")
    stages = sorted(progress.stage_seconds(progress.records[-1]).items(), key=lambda item: -item[1])
    best = progress.best("reward/mean")
    said = [f"{name} {duration(seconds)}" for name, seconds in stages]
    if best:
        said.append(f"best reward {number(best[1])} at step {best[0]}")
    return Text(" · ".join(said), style="dim")
