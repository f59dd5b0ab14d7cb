"""The command: plans a job and prints it."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from shutil import get_terminal_size

import click

from rljob_api.loading.load import parse_job
from rljob_api.picture.graph_svg import render_svg
from rljob_api.planning.advice import warnings_of
from rljob_api.planning.fitting import Fit, fit
from rljob_api.planning.plan import Plan
from rljob_api.planning.planner import plan as plan_of
from rljob_worker.cli.jobfile import read_text
from rljob_worker.cli.plan.sheet import paragraph
from rljob_worker.cli.plan.sheets import plan_heading, sheets_of
from rljob_worker.errors import StorageError
from rljob_worker.model_shapes import shapes_of

PLAIN_SIZE = (160, 24)
"""Columns and lines of a file or a pipe, where COLUMNS says nothing else."""


def show_plan(path: Path, overrides: Sequence[str], svg: Path | None, *, as_json: bool, fits: bool) -> int:
    """Print the plan of a job, or of one that fits; files that the job names need not be here."""
    job = parse_job(read_text(path), overrides)
    shapes = shapes_of(job, path.absolute().parent)
    if fits:
        result = fit(job, shapes)
        job = result.job
        _say(result)
    plan = plan_of(job, shapes=shapes)
    if svg is not None:
        _write(svg, render_svg(plan))
    if as_json:
        click.echo(json.dumps(plan.to_json(), indent=1))
        return 0
    click.echo(written(plan, get_terminal_size(PLAIN_SIZE).columns, partial(click.style, bold=True)))
    for sentence in warnings_of(plan):
        click.echo(f"warning: {sentence}", err=True)
    if svg is not None:
        click.echo(f"drew {svg}", err=True)
    return 0


def _say(result: Fit) -> None:
    """What to set, besides what is printed for others to read."""
    if not result.changes:
        click.echo("the job fits as it is", err=True)
        return
    click.echo("the job fits with", err=True)
    for path, value in result.changes.items():
        click.echo(f"  {path}: {value}", err=True)
    click.echo("that is  " + " ".join(f"--set {override}" for override in result.overrides), err=True)


def written(plan: Plan, width: int, title: Callable[[str], str] = str) -> str:
    """A plan as text in lines of `width` characters; title: how titles are set."""
    lines = [title(line) for line in paragraph(plan_heading(plan), width)]
    for sheet in sheets_of(plan):
        lines += ["", *([title(sheet.title)] if sheet.title else []), *sheet.lines(width)]
    return "\n".join(lines)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error
