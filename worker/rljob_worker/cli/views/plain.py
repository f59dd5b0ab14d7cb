"""A run as plain lines: for logs, pipes and CI a line per step, and at its end what a person needs."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rljob_worker.cli.output import say
from rljob_worker.cli.views.figures import (
    StepWarnings,
    count,
    duration,
    format_number,
    idle_times,
    misses_of,
    share_of_episodes,
    size,
)
from rljob_worker.local.watching.progress import MetricsTail, RunProgress
from rljob_worker.metrics.finals import WINDOW
from rljob_worker.metrics.idle import idle_sentence
from rljob_worker.metrics.response_lengths import carried_sentence
from rljob_worker.rundir.directory import RunDirectory, RunNote
from rljob_worker.storage.paths import StoragePath

LONG_SECONDS = 5.0
"""After which the phase of a start is reported although it has not ended, and again whenever that has doubled."""

_SUCCESS = "validation/success"


class PlainView:
    """One line per step and per event."""

    def __init__(
        self,
        directory: RunDirectory,
        total_steps: int,
        stages: tuple[str, ...],
        weights: Mapping[str, float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tail = MetricsTail(directory.metrics)
        self._tail.poll()  # an earlier run's lines are not news
        self._total_steps = total_steps
        self._stages = stages
        self._phase = self._doing = ""
        self._clock, self._began, self._report_seconds = clock, clock(), LONG_SECONDS
        self._warnings = StepWarnings(weights, self._tail.records)

    def note(self, note: RunNote) -> None:
        if note.doing != self._doing:
            self._doing, self._began, self._report_seconds = note.doing, self._clock(), LONG_SECONDS
        if note.phase != self._phase:
            self._phase = note.phase
            if note.phase in ("Restarting", "Stopping"):
                return  # `say` says more
            say(f"{note.name}: {note.phase.lower()}, attempt {note.attempt}")

    def say(self, text: str) -> None:
        say(text)

    def tick(self) -> None:
        if self._phase == "Starting" and self._doing and self._clock() - self._began >= self._report_seconds:
            say(f"  {self._doing} ... {self._report_seconds:.0f} s so far")
            self._report_seconds *= 2
        for record in self._tail.poll():
            earlier = [item for item in self._tail.records if item["step"] <= record["step"]]
            say(format_step(record, RunProgress(earlier, self._total_steps, self._stages)))
            for line in self._warnings.lines(record):
                say(line)

    def close(self) -> None:
        self.tick()


def format_step(record: Mapping[str, Any], progress: RunProgress) -> str:
    """One step in one line; figures that the step does not have are left out."""
    stages = progress.stage_seconds(record)
    times = ", ".join(f"{name} {duration(seconds)}" for name, seconds in stages.items())
    seconds = record.get("time/step_seconds")
    parts = [
        f"step {record['step']}/{progress.total_steps}",
        _figure("reward", format_number(record.get("reward/mean"))),
        _figure("validation", format_number(record.get("validation/accuracy"))),
        _figure("success", share_of_episodes(record)),
        _figure("loss", format_number(record.get("loss/policy"))),
        _figure("kl", format_number(record.get("kl/reference"))),
        _figure("entropy", format_number(record.get("policy/entropy"))),
        _figure("clip", format_number(record.get("policy/clip_fraction"))),
        _figure("length", format_number(record.get("response_length/mean"))),
        _figure("tokens/s", count(record.get("throughput/tokens_per_second"))),
        "" if seconds is None else f"{duration(seconds)}{f' ({times})' if times else ''}",
        _figure("unfinished", count(record.get("partial/rows_unfinished"))),
        _figure("idle", idle_times(record)),
        _figure("data", size(record.get("data/bytes_total"))),
        "" if seconds is None else _figure("eta", duration(progress.eta_seconds())),
    ]
    return "  ".join(part for part in parts if part)


def _figure(name: str, text: str) -> str:
    return "" if text == "–" else f"{name} {text}"


def summary(
    note: RunNote,
    progress: RunProgress,
    directory: RunDirectory,
    steps: list[int],
    command: str,
    warned: Sequence[str] = (),
) -> str:
    """Several lines; `steps` are those of committed checkpoints, `command` is what began the run, `warned` what its
    health was warned of."""
    took = duration(note.updated_seconds - note.started_seconds)
    lines = [f"{note.name}: {note.phase.lower()} after {progress.step} of {note.total_steps} steps, in {took}"]
    lines += _rises(progress)
    if waits := idle_sentence(progress.records):
        lines.append(f"  {'idle':<11} {waits}")
    if carried := carried_sentence(progress.records):
        lines.append(f"  {'carried':<11} {carried}")
    lines += [f"  {'missed':<11} {miss}" for miss in misses_of(progress.records)]
    lines += [f"  {'warned':<11} {line}" for line in warned]
    lines += _places(directory, steps)
    lines += _next_steps(note, directory, steps, command)
    return "\n".join(lines)


def _rises(progress: RunProgress) -> list[str]:
    lines = []
    window = min(WINDOW, max(1, progress.step // 2))
    first, last = progress.mean_of_first("reward/mean", window), progress.mean_of_last("reward/mean", window)
    best = progress.best("reward/mean")
    if first is not None and best is not None:
        averaged = f" (mean of {window} steps)" if window > 1 else ""
        lines.append(
            f"  reward      {format_number(first)} -> {format_number(last)}{averaged}, best "
            f"{format_number(best[1])} at step {best[0]}"
        )
    best = progress.best("validation/accuracy")
    if best is not None:
        first, last = progress.first("validation/accuracy"), progress.latest("validation/accuracy")
        lines.append(
            f"  validation  {format_number(first)} -> {format_number(last)}, best {format_number(best[1])} at step "
            f"{best[0]}"
        )
    return [*lines, *_successes(progress)]


def _successes(progress: RunProgress) -> list[str]:
    """What the last validation of episodes came to, over all and for each task."""
    record = next((item for item in reversed(progress.records) if _SUCCESS in item), None)
    if record is None:
        return []
    tasks = [name.removeprefix(f"{_SUCCESS}/") for name in record if name.startswith(f"{_SUCCESS}/")]
    by_task = ", ".join(f"{task} {share_of_episodes(record, task)}" for task in sorted(tasks))
    return [f"  {'success':<11} {share_of_episodes(record)}" + f" ({by_task})" * (len(tasks) > 1)]


def _places(directory: RunDirectory, steps: list[int]) -> list[str]:
    result = [
        ("metrics", directory.metrics),
        ("samples", directory.samples),
        ("report", directory.report),
        ("logs", directory.path / "logs"),
    ]
    lines = [f"  {name:<11} {shortest(path)}" for name, path in result if path.exists()]
    if steps:
        listed = ", ".join(map(str, steps))
        lines.append(f"  {'checkpoints':<11} {shortest(directory.checkpoints)} (steps {listed})")
    if (directory.path / "tensorboard").exists():
        lines.append(f"  {'charts':<11} tensorboard --logdir {shortest(directory.path / 'tensorboard')}")
    return lines


def _next_steps(note: RunNote, directory: RunDirectory, steps: list[int], command: str) -> list[str]:
    lines = []
    if steps:
        lines.append(f"  {'export':<11} rljob export {shortest(directory.path)} {note.name}-model")
    if note.phase == "Stopped" or (note.phase == "Failed" and steps):
        lines.append(f"  {'go on':<11} {command}")
    return lines


def shortest(place: StoragePath) -> str:
    """Relative to the current directory if it is below it."""
    here = Path.cwd()
    return str(place.relative_to(here)) if isinstance(place, Path) and place.is_relative_to(here) else str(place)
