"""`rljob validate`: every mistake of every file at once."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click

from rljob_api.planning.plan import Plan
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_api.vocabulary.problem import InvalidJobError, Problem
from rljob_worker.cli.jobfile import examine, has_worker, open_job
from rljob_worker.errors import InvalidJob
from rljob_worker.rehearsal.finding import Finding


def validate_jobs(
    paths: Sequence[Path],
    overrides: Sequence[str],
    as_json: bool = False,
    *,
    looks_at_data: bool = True,
    here: bool = False,
) -> int:
    """0 if all are valid, else 64. as_json: every file with its problems on standard output, for programs.   here: what
    this machine lacks is a problem."""
    verdicts = [verdict_on(path, overrides, looks_at_data=looks_at_data) for path in paths]
    if here:
        verdicts = [replace(item, problems=(*item.problems, *item.lacking), lacking=()) for item in verdicts]
    if as_json:
        click.echo(json.dumps([asdict(verdict) for verdict in verdicts], indent=1))
    else:
        for verdict in verdicts:
            click.echo(verdict.text(), err=bool(verdict.problems))
    return int(ExitCode.INVALID_JOB if any(verdict.problems for verdict in verdicts) else ExitCode.DONE)


@dataclass(frozen=True)
class ValidationResult:
    """On one file."""

    file: str
    job: str | None
    """Its name, where it is valid."""
    problems: tuple[Problem, ...] = ()
    unseen: tuple[str, ...] = ()
    """What could not be looked at here."""
    lacking: tuple[Problem, ...] = ()
    """What keeps a job from running on this machine; on another it may run."""
    warned: tuple[str, ...] = ()
    """What lets the job run and is probably not meant."""

    def text(self) -> str:
        lacking = [f"not on this machine: {item}" for item in self.lacking]
        warned = [f"warning: {item}" for item in self.warned]
        if self.problems:
            return "\n\n  ".join([problem_list(self.file, self.problems), *lacking, *warned])
        notes = [f"not looked at: {item}" for item in self.unseen]
        return "\n  ".join([f"{self.file}: {self.job} is valid", *notes, *lacking, *warned])


def verdict_on(path: Path, overrides: Sequence[str], *, looks_at_data: bool = True) -> ValidationResult:
    """Everything that is wrong with a job, its plan and what it names, or with the file."""
    try:
        file = open_job(path, overrides)
    except InvalidJobError as error:
        return ValidationResult(str(path), None, error.problems)
    except InvalidJob as error:
        return ValidationResult(str(path), None, (Problem("", "", str(error), "Name a readable YAML file."),))
    plan, findings = examine(file, looks_at_data=looks_at_data)
    if plan is None or findings.found:
        lacking = tuple(item.problem for item in findings.lacking)
        return ValidationResult(str(path), None, findings.problems, findings.unseen, lacking, findings.warned)
    here, uncounted = seen_here(plan, file.job.spec.wanted_generators) if has_worker() else ((), ())
    lacking = tuple(item.problem for item in (*findings.lacking, *file.located_findings(here)))
    return ValidationResult(str(path), file.job.name, (), (*findings.unseen, *uncounted), lacking, findings.warned)


def seen_here(plan: Plan, num_guests: int = 0) -> tuple[Sequence[Finding], Sequence[str]]:
    """What `rljob run` would miss in this folder of this machine; what of it only workers can see. num_guests: pods of
    the elastic group."""
    from rljob_worker.databuffer.routes.hosts import guests_of, hosts_of  # a plain install lacks what it stands on
    from rljob_worker.local.pods.environment import job_variables
    from rljob_worker.rehearsal.machine.machine import findings_here
    from rljob_worker.rehearsal.machine.tracker_logins import unreachable_trackers
    from rljob_worker.visible_devices import uncounted_groups, uncounted_services

    here = (*hosts_of(plan), *guests_of(plan)[:num_guests])
    findings = findings_here(plan, here, os.environ, Path("runs", plan.job))
    uncounted = [
        f"how many accelerators ({group.profile}) worker group {group.name} finds here: its workers count them"
        for group in uncounted_groups(plan, os.environ)
    ] + [
        f"how many accelerators ({service.profile}) service {service.name} finds here: its copies count them"
        for service in uncounted_services(plan, os.environ)
    ]
    trackers = unreachable_trackers(plan.spec.monitoring.trackers, {**os.environ, **job_variables(plan.spec)})
    return findings, [*uncounted, *(f"whether a tracker is reached: {tracker}" for tracker in trackers)]


def problem_list(path: Path | str, problems: Sequence[Problem]) -> str:
    """What is wrong, where, what stands there, and the fix: one paragraph per problem."""
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return "\n".join([f"{path} has {count}:", *map(_paragraph, problems)])


def _paragraph(problem: Problem) -> str:
    place = problem.path or "the file"
    source = f" ({problem.source})" if problem.source else ""
    result = f", found {problem.found}" if problem.found else ""
    fix = f"\n    {problem.fix}" if problem.fix else ""
    return f"\n  {place}{source}\n    {problem.message}{result}{fix}"
