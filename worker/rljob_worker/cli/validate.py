"""`rljob validate`: every mistake of every file at once."""

from collections.abc import Sequence
from pathlib import Path

import click

from rljob_api.planning.planner import plan
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_api.vocabulary.problem import InvalidJobError, Problem
from rljob_worker.cli.jobfile import read_job
from rljob_worker.errors import InvalidJob
from rljob_worker.local.model_shapes import shapes_of


def validate_jobs(paths: Sequence[Path], overrides: Sequence[str]) -> int:
    """0 if all are valid, else 64."""
    verdicts = [_validate(path, overrides) for path in paths]
    return int(ExitCode.DONE if all(verdicts) else ExitCode.INVALID_JOB)


def _validate(path: Path, overrides: Sequence[str]) -> bool:
    try:
        job = read_job(path, overrides)
        plan(job, shapes=shapes_of(job, path.absolute().parent))
    except InvalidJobError as error:
        click.echo(problem_list(path, error.problems), err=True)
        return False
    except InvalidJob as error:
        click.echo(f"rljob: {error}", err=True)
        return False
    click.echo(f"{path}: {job.name} is valid")
    return True


def problem_list(path: Path, problems: Sequence[Problem]) -> str:
    """What is wrong, where, what stands there, and the fix: one paragraph per problem."""
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return "\n".join([f"{path} has {count}:", *map(_paragraph, problems)])


def _paragraph(problem: Problem) -> str:
    place = problem.path or "the file"
    line = f" (line {problem.line})" if problem.line is not None else ""
    found = f", found {problem.found}" if problem.found else ""
    return f"\n  {place}{line}\n    {problem.message}{found}\n    {problem.fix}"
