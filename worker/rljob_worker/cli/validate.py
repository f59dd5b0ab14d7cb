"""`rljob validate`: every mistake of every file at once."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_api.vocabulary.problem import InvalidJobError, Problem
from rljob_worker.cli.jobfile import examine, open_job
from rljob_worker.errors import InvalidJob


def validate_jobs(
    paths: Sequence[Path], overrides: Sequence[str], as_json: bool = False, *, looks_at_data: bool = True
) -> int:
    """0 if all are valid, else 64. as_json: every file with its problems on standard output, for programs."""
    verdicts = [verdict_on(path, overrides, looks_at_data=looks_at_data) for path in paths]
    if as_json:
        click.echo(json.dumps([asdict(each) for each in verdicts], indent=1))
    else:
        for each in verdicts:
            click.echo(each.text(), err=bool(each.problems))
    return int(ExitCode.INVALID_JOB if any(each.problems for each in verdicts) else ExitCode.DONE)


@dataclass(frozen=True)
class Verdict:
    """On one file."""

    file: str
    job: str | None
    """Its name, where it is valid."""
    problems: tuple[Problem, ...] = ()
    unseen: tuple[str, ...] = ()
    """What could not be looked at here."""

    def text(self) -> str:
        if self.problems:
            return problem_list(self.file, self.problems)
        return "\n".join([f"{self.file}: {self.job} is valid", *(f"  not looked at: {each}" for each in self.unseen)])


def verdict_on(path: Path, overrides: Sequence[str], *, looks_at_data: bool = True) -> Verdict:
    """Everything that is wrong with a job, its plan and what it names, or with the file."""
    try:
        file = open_job(path, overrides)
    except InvalidJobError as error:
        return Verdict(str(path), None, error.problems)
    except InvalidJob as error:
        return Verdict(str(path), None, (Problem("", "", str(error), "Name a readable YAML file."),))
    _, findings = examine(file, looks_at_data=looks_at_data)
    return Verdict(str(path), None if findings.found else file.job.name, findings.problems, findings.unseen)


def problem_list(path: Path | str, problems: Sequence[Problem]) -> str:
    """What is wrong, where, what stands there, and the fix: one paragraph per problem."""
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return "\n".join([f"{path} has {count}:", *map(_paragraph, problems)])


def _paragraph(problem: Problem) -> str:
    place = problem.path or "the file"
    source = f" ({problem.source})" if problem.source else ""
    found = f", found {problem.found}" if problem.found else ""
    fix = f"\n    {problem.fix}" if problem.fix else ""
    return f"\n  {place}{source}\n    {problem.message}{found}{fix}"
