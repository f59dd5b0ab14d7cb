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
from rljob_worker.cli.from_python.callbacks import CALLBACK_SECONDS, CallbackView, RunCallbacks
from rljob_worker.cli.from_python.notebook import NotebookView, in_notebook
from rljob_worker.cli.jobfile import JobFile, examine, job_of_text, open_job
from rljob_worker.cli.run import LocalRun, all_of, of_this_machine, supervise
from rljob_worker.errors import RLJobError
from rljob_worker.local.pods.pods import Commands
from rljob_worker.metrics.lines import records_in
from rljob_worker.rundir.directory import METRICS, SAMPLES, RunDirectory, RunNote
from rljob_worker.supervision.record import View

AnyJob = RLJob | Mapping[str, Any] | str | Path
"""A job built in Python, its object as a mapping, or its file."""


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
    progress: bool | None = None,
    callback_seconds: float | None = CALLBACK_SECONDS,
) -> Run:
    """Run the job on this machine to its end. resume: auto, never or a step; unset: the job's own.   progress: a table
    of the run in the notebook's cell; unset: in a notebook, where no callback is given.   callback_seconds: for one
    call of a callback, which is interrupted then and ends the run; None: no limit.

    Call it from the main thread: signals that stop the run arrive there. Raises InvalidJobError, or RunFailed.
    """
    require_extra("worker", "rljob.run")
    is_plain = on_step is None and on_phase is None and on_message is None
    is_shown = is_plain and in_notebook() if progress is None else progress
    tell = on_message or (print if is_shown else None)
    callbacks = RunCallbacks(on_step, on_phase, tell, callback_seconds)

    @contextmanager
    def viewed(directory: RunDirectory, plan: Plan) -> Iterator[View]:
        view: View = CallbackView(directory, callbacks, {reward.name: reward.weight for reward in plan.spec.rewards})
        if is_shown:
            view = NotebookView(directory, plan, view)
        yield view
        view.tick()

    file = _file_of(job, folder)
    gangs = of_this_machine(file, Commands())
    running = LocalRun(file, Path(runs_dir), resume, viewed, all_of(file), gangs, tell=tell)
    directory, note = supervise(running)
    if note is not None and note.phase == "Failed":
        raise RunFailed(note)
    return Run(directory.path, "Succeeded" if note is None else note.phase)


def _file_of(job: AnyJob, folder: str | Path) -> JobFile:
    if isinstance(job, str | Path):
        return open_job(Path(job), ())
    # built in Python or not, it goes the way of a file: the same checks, and errors that name the same fields
    body = job.model_dump(mode="json", by_alias=True, exclude_unset=True) if isinstance(job, RLJob) else job
    text = yaml.safe_dump(json.loads(json.dumps(body)), sort_keys=False)
    file = job_of_text(text, Path(folder) / "the job", ())
    # lines of a text that nobody wrote say nothing
    return replace(file, text="{}", problems=tuple(replace(problem, line=None) for problem in file.problems))
