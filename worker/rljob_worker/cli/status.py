"""`rljob status`: what runs or ran here."""

import json
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from rljob.columns import in_columns, terminal_width
from rljob.commands import age_text
from rljob.commands import jobs_table as job_table
from rljob.job import Job
from rljob_worker.cli.views.figures import duration, format_number
from rljob_worker.errors import InvalidJob
from rljob_worker.local.watching.progress import MetricsTail, RunProgress
from rljob_worker.rundir.directory import RUNNING_PHASES, RunDirectory, RunNote, runs_in

HEADS = ("NAME", "PHASE", "STEP", "REWARD", "VALIDATION", "RESTARTS", "PID", "DURATION", "AGE", "CAUSE")
LEAST_NEEDED = ("PID", "RESTARTS", "DURATION", "VALIDATION", "REWARD")


_NOTHING_RUNS = {"pid": None, "metrics_url": "", "doing": ""}
"""Values for a run that ended: the process is gone, and what answers there by now is somebody else."""


def show_status(run: str | None, runs_dir: Path, as_json: bool, jobs: list[Job] | None = None) -> int:
    """All runs as a table, or one in detail; below them the jobs of a cluster."""
    result = [find_run(run, runs_dir)] if run else list(runs_in(runs_dir))
    rows = [row for row in map(status_row, result) if row is not None]
    rows.sort(key=lambda row: row["started_seconds"], reverse=True)
    if as_json:
        shown = rows[0] if run else rows if jobs is None else rows + [job.to_json() for job in jobs]
        click.echo(json.dumps(shown, indent=1))
    elif run:
        click.echo(detail(rows[0]))
    elif rows:
        click.echo(status_table(rows, terminal_width()))
    else:
        click.echo(f"no runs in {runs_dir}")
    if jobs is not None and not as_json:
        click.echo("\n" + (job_table(jobs, datetime.now(UTC), terminal_width()) if jobs else "no jobs on the cluster"))
    return 0


def find_run(run: str, runs_dir: Path) -> RunDirectory:
    """The run of this name in `runs_dir`, or at this path; InvalidJob, listing what there is, when there is none."""
    for path in (runs_dir / run, Path(run)):
        if (path / "run.json").is_file():
            return RunDirectory(path)
    there = ", ".join(directory.name for directory in runs_in(runs_dir)) or "none"
    raise InvalidJob(f"no run {run} in {runs_dir}; there are: {there}. --runs-dir looks elsewhere")


def status_row(directory: RunDirectory) -> dict[str, Any] | None:
    """The figures of one run."""
    note = directory.read_note()
    if note is None:
        return None
    tail = MetricsTail(directory.metrics)
    tail.poll()
    progress = RunProgress(tail.records, note.total_steps)
    of_its_end = {} if note.phase in RUNNING_PHASES else _NOTHING_RUNS
    return (
        asdict(note)
        | of_its_end
        | {
            "directory": str(directory.path),
            "step": progress.step,
            "reward": progress.latest("reward/mean"),
            "validation": progress.latest("validation/accuracy"),
            "age_seconds": time.time() - note.started_seconds,
            "duration_seconds": _duration_seconds(note),
        }
    )


def _duration_seconds(note: RunNote) -> float:
    """How long it runs, or ran."""
    end = time.time() if note.phase in RUNNING_PHASES else note.updated_seconds
    return end - note.started_seconds


def status_table(rows: list[dict[str, Any]], width: int | None = None) -> str:
    """A line a run, under HEADS, within the width."""
    return in_columns([HEADS, *map(_cells, rows)], width, LEAST_NEEDED)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["name"],
        row["phase"],
        f"{row['step']}/{row['total_steps']}",
        format_number(row["reward"]),
        format_number(row["validation"]),
        str(row["restarts"]),
        str(row["pid"] or "–"),
        duration(row["duration_seconds"]),
        age_text(row["age_seconds"]),
        row["cause"] if row["phase"] == "Failed" else "",
    )


def detail(row: dict[str, Any]) -> str:
    """One run, a figure per line."""
    lines = [f"{head.lower():<11}{cell}" for head, cell in zip(HEADS[:-1], _cells(row)[:-1], strict=True)]
    lines.append(f"{'attempt':<11}{row['attempt']}")
    if row["doing"] and row["phase"] == "Starting":
        lines.append(f"{'doing':<11}{row['doing']}")
    if row["exit_code"] is not None:
        lines.append(f"{'exit code':<11}{row['exit_code']}")
    if row["phase"] == "Lost":
        lines.append(f"{'cause':<11}its supervisor died without a word; `rljob run` goes on")
    elif row["cause"]:
        lines.append(f"{'cause':<11}{row['cause']}")
    if row["metrics_url"]:
        lines.append(f"{'metrics':<11}{row['metrics_url']}")
    if row["log"]:
        lines.append(f"{'log':<11}{row['log']}")
    lines.append(f"{'directory':<11}{row['directory']}")
    return "\n".join(lines)
