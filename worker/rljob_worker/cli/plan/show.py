"""The command: plans a job and prints it."""

import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from shutil import get_terminal_size
from typing import Protocol

import click

from rljob_api.catalogue import profiles as built_in_profiles
from rljob_api.loading.load import parse_job
from rljob_api.picture.graph_svg import render_svg
from rljob_api.planning.advice import warnings_of
from rljob_api.planning.costs.timeline import timeline_of
from rljob_api.planning.fitting import Fit, fit
from rljob_api.planning.plan import Plan
from rljob_api.planning.planner import plan as plan_of
from rljob_api.v1alpha1 import RLJob
from rljob_worker.cli.jobfile import read_text
from rljob_worker.cli.plan.sheet import paragraph
from rljob_worker.cli.plan.sheets import plan_heading, sheets_of
from rljob_worker.cli.plan.stage_times import parse_times
from rljob_worker.cli.plan.timeline_view import TimelineView, timeline_json
from rljob_worker.errors import StorageError
from rljob_worker.model_shapes import configs_in, shapes_of

PLAIN_SIZE = (160, 24)
"""Columns and lines of a file or a pipe, where COLUMNS says nothing else."""


class PlanView(Protocol):
    """A part of what is printed."""

    @property
    def title(self) -> str:
        """The line above it; empty where it has none."""
        ...

    def lines(self, width: int) -> list[str]:
        """Without the title, of at most `width` characters."""
        ...


def show_plan(
    path: Path, overrides: Sequence[str], svg: Path | None, times: Sequence[str], *, as_json: bool, fits: bool
) -> int:
    """Print the plan of a job, or of one that fits; files that the job names need not be here. times: seconds per
    stage as they are written, for a timeline."""
    job = parse_job(read_text(path), overrides)
    shapes = shapes_of(job.spec, configs_in(path.absolute().parent))
    if fits:
        result = fit(job, shapes)
        job = result.job
        _say(result)
        _say_whose_speed(result.job)
    plan = plan_of(job, shapes=shapes)
    view = timeline_view(plan, times) if times else None
    if svg is not None:
        _write(svg, render_svg(plan))
    if as_json:
        document = plan.to_json() | ({} if view is None else {"timeline": timeline_json(view.timeline)})
        click.echo(json.dumps(document, indent=1))
        return 0
    views: list[PlanView] = [*sheets_of(plan, shapes), *([] if view is None else [view])]
    click.echo(written(plan, views, get_terminal_size(PLAIN_SIZE).columns, partial(click.style, bold=True)))
    for sentence in warnings_of(plan):
        click.echo(f"warning: {sentence}", err=True)
    if svg is not None:
        click.echo(f"drew {svg}", err=True)
    return 0


def _say(result: Fit) -> None:
    """What to set, besides what is printed for others to read."""
    seconds = f"{result.seconds:.3g} s of training and scoring in a step, as predicted"
    if not result.changes:
        click.echo(f"the job fits as it is: {seconds}", err=True)
        return
    before = "" if result.seconds_as_written is None else f", {result.seconds_as_written:.3g} s without"
    click.echo(f"the job fits with the following: {seconds}{before}", err=True)
    for path, value in result.changes.items():
        click.echo(f"  {path}: {value}", err=True)
    click.echo("that is  " + " ".join(f"--set {override}" for override in result.overrides), err=True)


def _say_whose_speed(job: RLJob) -> None:
    """Which accelerators are taken for others, as their profiles do not say how fast they are."""
    profiles = (built_in_profiles.DEFAULT[group.accelerator.profile] for group in job.spec.worker_groups)
    unknown = sorted({item.name for item in profiles if item.device != "cpu" and "speed" not in item.model_fields_set})
    if unknown:
        click.echo(f"seconds are those of an H100: no speed is known of {', '.join(unknown)}", err=True)


def timeline_view(plan: Plan, times: Sequence[str]) -> TimelineView:
    """The steady state of a plan, from seconds per stage as they are written. Raises InvalidJob."""
    parsed = parse_times(times, plan)
    return TimelineView(plan, parsed, timeline_of(plan, parsed))


def written(plan: Plan, views: Iterable[PlanView], width: int, title: Callable[[str], str] = str) -> str:
    """A plan as text in lines of `width` characters; title: how titles are set."""
    lines = [title(line) for line in paragraph(plan_heading(plan), width)]
    for view in views:
        lines += ["", *([title(view.title)] if view.title else []), *view.lines(width)]
    return "\n".join(lines)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error
