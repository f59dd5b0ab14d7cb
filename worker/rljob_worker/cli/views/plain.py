"""A run as plain lines: for logs, pipes and CI."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from rljob_worker.cli.output import say
from rljob_worker.cli.views.figures import count, duration, number, size
from rljob_worker.cli.views.misses import misses_of
from rljob_worker.local.watching.progress import MetricsTail, Progress
from rljob_worker.rundir.directory import RunDirectory, RunNote

LONG_SECONDS = 5.0
"""After which what a start does is told although it has not ended, and again whenever that has doubled."""


class PlainView:
    """One line per step and per event."""

    def __init__(
        self,
        directory: RunDirectory,
        total_steps: int,
        stages: tuple[str, ...],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tail = MetricsTail(directory.metrics)
        self._tail.poll()  # an earlier run's lines are not news
        self._total_steps = total_steps
        self._stages = stages
        self._phase = self._doing = ""
        self._clock, self._began, self._told_seconds = clock, clock(), LONG_SECONDS

    def note(self, note: RunNote) -> None:
        if note.doing != self._doing:
            self._doing, self._began, self._told_seconds = note.doing, self._clock(), LONG_SECONDS
        if note.phase != self._phase:
            self._phase = note.phase
            if note.phase in ("Restarting", "Stopping"):
                return  # `say` says more
            say(f"{note.name}: {note.phase.lower()}, attempt {note.attempt}")

    def say(self, text: str) -> None:
        say(text)

    def tick(self) -> None:
        if self._phase == "Starting" and self._doing and self._clock() - self._began >= self._told_seconds:
            say(f"  {self._doing} ... {self._told_seconds:.0f} s so far")
            self._told_seconds *= 2
        for record in self._tail.poll():
            earlier = [each for each in self._tail.records if each["step"] <= record["step"]]
            say(step_line(record, Progress(earlier, self._total_steps, self._stages)))
            for miss in misses_of([record]):
                say(f"warning: step {record['step']}: {miss}")

    def close(self) -> None:
        self.tick()


def step_line(record: Mapping[str, Any], progress: Progress) -> str:
    """One step in one line; figures that the step does not have are left out."""
    stages = progress.stage_seconds(record)
    times = ", ".join(f"{name} {duration(seconds)}" for name, seconds in stages.items())
    seconds = record.get("time/step_seconds")
    parts = [
        f"step {record['step']}/{progress.total_steps}",
        _figure("reward", number(record.get("reward/mean"))),
        _figure("validation", number(record.get("validation/accuracy"))),
        _figure("loss", number(record.get("loss/policy"))),
        _figure("kl", number(record.get("kl/reference"))),
        _figure("entropy", number(record.get("policy/entropy"))),
        _figure("clip", number(record.get("policy/clip_fraction"))),
        _figure("length", number(record.get("response_length/mean"))),
        _figure("tokens/s", count(record.get("throughput/tokens_per_second"))),
        "" if seconds is None else f"{duration(seconds)}{f' ({times})' if times else ''}",
        _figure("data", size(record.get("data/bytes_total"))),
        "" if seconds is None else _figure("eta", duration(progress.eta_seconds())),
    ]
    return "  ".join(part for part in parts if part)


def _figure(name: str, text: str) -> str:
    return "" if text == "–" else f"{name} {text}"
