"""`rljob.run`, `rljob.plan` and `rljob.validate`: what the command line does, for programs and notebooks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from rljob_api.planning.plan import Plan
from rljob_api.v1alpha1 import RLJob
from rljob_api.vocabulary.problem import Problem
from rljob_worker.cli.extras import require_extra
from rljob_worker.cli.jobfile import JobFile, examine, job_of_text, open_job
from rljob_worker.cli.run import LocalRun, all_of, of_this_machine, supervise
from rljob_worker.cli.views.figures import StepWarnings
from rljob_worker.errors import RLJobError
from rljob_worker.local.pods.pods import Commands
from rljob_worker.local.watching.progress import MetricsTail
from rljob_worker.metrics.lines import records_in
from rljob_worker.rundir.directory import METRICS, SAMPLES, RunDirectory, RunNote

AnyJob = RLJob | Mapping[str, Any] | str | Path
"""A job built in Python, its object as a mapping, or its file."""


@dataclass(frozen=True, slots=True)
class RunCallbacks:
    """What is called while a job runs, in the thread that runs it; an exception ends the run."""

    on_step: Callable[[int, Mapping[str, float]], object] | None = None
    """A finished step and its metrics; step 0 is the validation before the first."""
    on_phase: Callable[[str], object] | None = None
    """Starting, Running, Restarting, Stopping, Succeeded, Stopped or Failed."""
    on_message: Callable[[str], object] | None = None
    """What `rljob run` would say."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run that has ended, or that was finished before."""

    directory: Path
    phase: str
    """Succeeded or Stopped."""

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One mapping for each step."""
        return list(records_in(self.directory / METRICS))

    @property
    def samples(self) -> list[dict[str, Any]]:
        """Rows to look at, as in samples.jsonl."""
        return list(records_in(self.directory / SAMPLES))


class RunFailed(RLJobError):
    """The run ended with a failure."""

    def __init__(self, note: RunNote) -> None:
        super().__init__(f"{note.cause} (log: {note.log})")
        self.note = note


def validate(job: AnyJob, *, folder: str | Path = ".", looks_at_data: bool = True) -> list[Problem]:
    """Everything that would end the job wherever it runs. folder: where relative paths begin, and the user's modules
    are; for a file it is the file's."""
    _, findings = examine(_file_of(job, folder), looks_at_data=looks_at_data)
    return list(findings.problems)


def plan(job: AnyJob, *, folder: str | Path = ".") -> Plan:
    """What would run where. Raises InvalidJobError with every problem."""
    result, findings = examine(_file_of(job, folder), looks_at_data=False)
    findings.raise_found()
    assert result is not None, "what keeps a job from being planned was found"
    return result


def run(
    job: AnyJob,
    *,
    folder: str | Path = ".",
    runs_dir: str | Path = "runs",
    resume: str | None = None,
    on_step: Callable[[int, Mapping[str, float]], object] | None = None,
    on_phase: Callable[[str], object] | None = None,
    on_message: Callable[[str], object] | None = None,
) -> Run:
    """Run the job on this machine to its end. resume: auto, never or a step; unset: the job's own.

    Call it from the main thread: signals that stop the run arrive there. Raises InvalidJobError, or RunFailed.
    """
    require_extra("worker", "rljob.run")
    progress = RunCallbacks(on_step, on_phase, on_message)

    @contextmanager
    def viewed(directory: RunDirectory, plan: Plan) -> Iterator[CallbackView]:
        view = CallbackView(directory, progress, {reward.name: reward.weight for reward in plan.spec.rewards})
        yield view
        view.tick()

    file = _file_of(job, folder)
    gangs = of_this_machine(file, Commands())
    running = LocalRun(file, Path(runs_dir), resume, viewed, all_of(file), gangs, tell=progress.on_message)
    directory, note = supervise(running)
    if note is not None and note.phase == "Failed":
        raise RunFailed(note)
    return Run(directory.path, "Succeeded" if note is None else note.phase)


class CallbackView:
    """A view of a run that calls functions."""

    def __init__(
        self, directory: RunDirectory, progress: RunCallbacks, weights: Mapping[str, float] | None = None
    ) -> None:
        """weights: of the job's rewards, by name."""
        self._tail = MetricsTail(directory.metrics)
        self._tail.poll()  # an earlier run's steps are not news
        self._warnings = StepWarnings(weights, self._tail.records)
        self._progress = progress
        self._phase = ""

    def note(self, note: RunNote) -> None:
        if note.phase != self._phase:
            self._phase = note.phase
            if self._progress.on_phase is not None:
                with _named("on_phase"):
                    self._progress.on_phase(note.phase)

    def say(self, text: str) -> None:
        if self._progress.on_message is not None:
            with _named("on_message"):
                self._progress.on_message(text)

    def tick(self) -> None:
        for record in self._tail.poll():
            if self._progress.on_step is not None:
                metrics = {name: value for name, value in record.items() if name != "step" and value is not None}
                with _named("on_step"):
                    self._progress.on_step(record["step"], metrics)
            for line in self._warnings.lines(record):
                self.say(line)


@contextmanager
def _named(callback: str) -> Iterator[None]:
    """The run's note says which callback raised."""
    try:
        yield
    except Exception as error:
        error.add_note(f"raised by the callback {callback}")
        raise


def _file_of(job: AnyJob, folder: str | Path) -> JobFile:
    if isinstance(job, str | Path):
        return open_job(Path(job), ())
    # built in Python or not, it goes the way of a file: the same checks, and errors that name the same fields
    body = job.model_dump(mode="json", by_alias=True, exclude_unset=True) if isinstance(job, RLJob) else job
    text = yaml.safe_dump(json.loads(json.dumps(body)), sort_keys=False)
    file = job_of_text(text, Path(folder) / "the job", ())
    # lines of a text that nobody wrote say nothing
    return replace(file, text="{}", problems=tuple(replace(problem, line=None) for problem in file.problems))
