"""`rljob run`: read, decide, lock, supervise, sum up."""

import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from rich.console import Console

from rljob_api.planning.plan import Plan
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_worker.checkpoint.resume import Finished, checkpoint_steps, decide_start, existing_run
from rljob_worker.cli.extras import require_extra
from rljob_worker.cli.jobfile import JobFile, examine, open_job
from rljob_worker.cli.output import say
from rljob_worker.cli.views.live import LiveView
from rljob_worker.cli.views.plain import PlainView, summary
from rljob_worker.databuffer.routes.hosts import Host, guests_of, hosts_of
from rljob_worker.errors import InvalidJob, StorageError
from rljob_worker.job_paths import moved_to
from rljob_worker.local.pods.environment import job_variables, missing_variables, spills_to_run_directory
from rljob_worker.local.pods.pods import Commands
from rljob_worker.local.watching.progress import MetricsTail, RunProgress
from rljob_worker.metrics.health import health_of, reward_weights
from rljob_worker.rehearsal.machine.machine import findings_here
from rljob_worker.rehearsal.machine.tracker_logins import unreachable_trackers
from rljob_worker.run_page.content import job_spec
from rljob_worker.run_page.page import write_page
from rljob_worker.rundir.directory import RunDirectory, RunLock, RunNote
from rljob_worker.rundir.home import home_of
from rljob_worker.supervision.record import View
from rljob_worker.supervision.supervisor import Launch, Supervisor

if TYPE_CHECKING:
    from rljob_worker.supervision.gang import GangFactory


def run_job(
    path: Path, overrides: Sequence[str], runs_dir: Path, resume: str | None, commands: Commands | None = None
) -> int:
    """Run the job to its end; returns the exit code of `rljob run`. `commands` None: the real processes."""
    require_extra("worker", "rljob run")
    file = open_job(path, overrides)
    gangs = of_this_machine(file, commands or Commands())
    run = LocalRun(file, runs_dir, resume, view_of, all_of(file), gangs)
    return report_end(*supervise(run), command_line("run", path, overrides, runs_dir))


def report_end(directory: RunDirectory, note: RunNote | None, command: str) -> int:
    """Sum a run up, and say how to go on; its exit code."""
    if note is None:
        return int(ExitCode.DONE)
    say(_summary(note, directory, command))
    if note.phase == "Failed":
        say(f"rljob: {note.cause}{f' (log: {note.log})' if note.log else ''}", err=True)
    assert note.exit_code is not None
    return note.exit_code


Views = Callable[[RunDirectory, Plan], contextlib.AbstractContextManager[View]]
GangsOf = Callable[[RunDirectory, Plan], contextlib.AbstractContextManager["GangFactory"]]


@dataclass(frozen=True, slots=True)
class LocalRun:
    """What is to run, and where."""

    file: JobFile
    runs_dir: Path
    resume: str | None
    viewed: Views
    pods_here: Callable[[Plan], Sequence[Host]]
    """Those of the plan's pods that run on this machine."""
    gangs: GangsOf
    tell: Callable[[str], object] | None = None
    """Gets what the console would."""


def of_this_machine(file: JobFile, commands: Commands) -> GangsOf:
    """All pods here."""
    from rljob_worker.supervision.one_host import local_gangs  # what it is made of a plain install lacks

    num_guests = file.job.spec.wanted_generators
    return lambda directory, plan: local_gangs(directory, plan, file.code, commands, num_guests)


def all_of(file: JobFile) -> Callable[[Plan], Sequence[Host]]:
    """The pods of the gang, and as many guests as are wanted."""
    return lambda plan: (*hosts_of(plan), *guests_of(plan)[: file.job.spec.wanted_generators])


def supervise(run: LocalRun) -> tuple[RunDirectory, RunNote | None]:
    """Run the job to its end, and write its report; no note where it was finished before. Raises InvalidJob and
    InvalidJobError before anything is started."""
    job, tell = run.file.job, run.tell
    directory = RunDirectory(run.runs_dir / job.name, home_of(job))
    _refuse_foreign(directory)
    plan, warned = _rehearsed(run, directory)
    for warning in (*warned, *_warnings(plan)):
        say(f"warning: {warning}", err=True) if tell is None else tell(f"warning: {warning}")
    directory.prepare(spills_to_run_directory(plan))
    with RunLock(directory.lock):
        start = decide_start(run.resume or job.spec.checkpoint.resume.lower(), plan.spec, existing_run(directory))
        if start.say:
            (tell or say)(start.say)
        if isinstance(start, Finished):
            return directory, None
        _write_down(directory, run.file, plan)
        with run.gangs(directory, plan) as gangs, run.viewed(directory, plan) as view:
            note = Supervisor(Launch(directory, plan, start.resume), view, gangs).run()
        _write_report(directory)
    return directory, note


def _rehearsed(run: LocalRun, directory: RunDirectory) -> tuple[Plan, Sequence[str]]:
    """The plan of a job that nothing is known to keep from running here, and advice. Raises InvalidJobError with
    everything that is."""
    plan, findings = examine(run.file)
    if plan is not None:
        here = run.file.located_findings(findings_here(plan, run.pods_here(plan), os.environ, directory.path))
        findings = replace(findings, found=(*findings.found, *findings.lacking, *here))
    findings.raise_found()
    assert plan is not None, "what keeps a job from being planned was found"
    return plan, findings.warned


def _refuse_foreign(directory: RunDirectory) -> None:
    """A directory that is not ours is never mixed with a run."""
    if directory.path.is_file() or (
        directory.path.is_dir() and not directory.lock.exists() and any(directory.path.iterdir())
    ):
        raise InvalidJob(
            f"{directory.path} exists and is not a run of rljob; move it away, or choose another name "
            "(`--set metadata.name=...`) or --runs-dir"
        )


def _warnings(plan: Plan) -> list[str]:
    """What this machine or its environment lacks, and the job can do without."""
    missing = missing_variables(os.environ, plan)
    return [
        *(f"spec.env takes {name} from the cluster, and it is not set here" for name in missing),
        *unreachable_trackers(plan.spec.monitoring.trackers, {**os.environ, **job_variables(plan.spec)}),
    ]


def _write_down(directory: RunDirectory, file: JobFile, plan: Plan) -> None:
    """The job, which can be run again from where it lies, also after all has moved together; the plan as it runs."""
    job = moved_to(file.job, file.folder, directory.path)
    document = job.model_dump(mode="json", by_alias=True, exclude_unset=True)
    directory.write(directory.code, os.path.relpath(file.code, directory.path.absolute()))
    directory.write(directory.job, yaml.safe_dump(document, sort_keys=False))
    directory.write(directory.plan, plan.canonical_json())


@contextlib.contextmanager
def view_of(directory: RunDirectory, plan: Plan) -> Iterator[LiveView | PlainView]:
    total_steps, stages = plan.spec.stop.steps, tuple(stage.name for stage in plan.stages)
    weights = {reward.name: reward.weight for reward in plan.spec.rewards}
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        with LiveView(directory, total_steps, stages, Console(), weights) as live:
            yield live
    else:
        plain = PlainView(directory, total_steps, stages, weights)
        yield plain
        plain.close()


def command_line(command: str, path: Path, overrides: Sequence[str], runs_dir: Path) -> str:
    """What a person types to go on with this run."""
    options = [part for override in overrides for part in ("--set", override)]
    elsewhere = [] if runs_dir == Path("runs") else ["--runs-dir", str(runs_dir)]
    return shlex.join(["rljob", command, str(path), *options, *elsewhere])


def _write_report(directory: RunDirectory) -> None:
    """The page of the run, however it ended."""
    try:
        write_page([directory.path], directory.report)
    except StorageError as error:
        say(f"warning: {error}", err=True)


def _summary(note: RunNote, directory: RunDirectory, command: str) -> str:
    tail = MetricsTail(directory.metrics)
    tail.poll()
    progress = RunProgress(tail.records, note.total_steps)
    warned = health_of(tail.records, reward_weights(job_spec(directory.path)))
    return summary(note, progress, directory, checkpoint_steps(directory), command, warned)
