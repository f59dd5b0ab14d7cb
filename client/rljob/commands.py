"""The subcommands of `rljob` that speak to a cluster."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from rljob.columns import in_columns, terminal_width
from rljob.errors import ClusterError

F = TypeVar("F", bound=Callable[..., Any])
HEADS = ("NAME", "PHASE", "READY", "STEP", "REWARD", "RESTARTS", "AGE", "REASON")
LEAST_NEEDED = ("RESTARTS", "READY", "REWARD")


def cluster_options(command: F) -> F:
    """Options that say which cluster, and which namespace of it."""
    for option in (
        click.option("--kubeconfig", type=click.Path(path_type=Path, dir_okay=False), help="File of contexts."),
        click.option("-n", "--namespace", help="[default: that of the context]"),
        click.option("--context", help="Of the kubeconfig.  [default: its current one]"),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("job", metavar="JOB.yaml", type=click.Path(path_type=Path))
@click.option("--code", type=click.Path(path_type=Path), help="A folder whose Python files go with the job.")
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Change a field, e.g. stop.steps=5.")
@click.option("--follow", "-f", is_flag=True, help="Show steps and the lead worker's log until the job ends.")
@cluster_options
def submit(job: Path, code: Path | None, overrides: tuple[str, ...], follow: bool, **cluster: Any) -> int:
    """Check a job and run it on a cluster.

    With --follow the command ends when the job does, with its exit code; Ctrl-C leaves the job alone.
    """
    client = client_of(cluster)
    made = client.submit(job, code=code, overrides=overrides)
    click.echo(f"{made.name}: submitted to namespace {made.namespace}")
    return _follow(client, made.name) if follow else 0


@click.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--follow", "-f", is_flag=True, help="Show the steps of NAME, and its log, until it ends.")
@cluster_options
def get(name: str | None, as_json: bool, follow: bool, **cluster: Any) -> int:
    """Show the jobs of a cluster, or the job NAME."""
    client = client_of(cluster)
    if follow:
        if name is None:
            raise ClusterError("--follow needs the name of a job")
        return _follow(client, name)
    result = [client.get(name)] if name else client.jobs()
    if as_json:
        shown = [job.to_json() for job in result]
        click.echo(json.dumps(shown[0] if name else shown, indent=1))
    else:
        click.echo(
            jobs_table(result, datetime.now(UTC), terminal_width())
            if result
            else f"no jobs in namespace {client.namespace}"
        )
        for job in result if name else ():
            click.echo(f"\n{job.reason}: {job.message}" if job.reason else "", nl=bool(job.reason))
    return 0


@click.command()
@click.argument("name")
@click.option("--follow", "-f", is_flag=True, help="Go on until the pod ends.")
@click.option("--group", help="A worker group.  [default: the one that reports]")
@click.option("--host", type=click.IntRange(min=0), default=0, show_default=True, help="A host of it.")
@cluster_options
def logs(name: str, follow: bool, group: str | None, host: int, **cluster: Any) -> int:
    """Print the log of a job's lead worker."""
    for line in client_of(cluster).logs(name, follow=follow, group=group, host=host):
        click.echo(line)
    return 0


@click.command()
@click.argument("name")
@cluster_options
def suspend(name: str, **cluster: Any) -> int:
    """Have a job write a checkpoint and give its pods back."""
    job = client_of(cluster).suspend(name)
    click.echo(f"{job.name}: is to be suspended after step {job.step}")
    return 0


@click.command()
@click.argument("name")
@cluster_options
def resume(name: str, **cluster: Any) -> int:
    """Let a suspended job go on."""
    job = client_of(cluster).resume(name)
    click.echo(f"{job.name}: goes on after step {job.step}")
    return 0


@click.command()
@click.argument("name")
@cluster_options
def delete(name: str, **cluster: Any) -> int:
    """Delete a job and its pods; what it wrote to its storage stays."""
    client_of(cluster).delete(name)
    click.echo(f"{name}: deleted")
    return 0


COMMANDS = (submit, get, logs, suspend, resume, delete)


def client_of(cluster: dict[str, Any]) -> Any:
    """The client that the options mean; what it needs is imported here. Raises ClusterError."""
    try:
        import kubernetes  # noqa: F401
    except ImportError:
        raise ClusterError("no package kubernetes is installed; pip install 'rljob[client]' brings it") from None
    from rljob.client import Client

    return Client(**cluster)


def jobs_of(cluster: dict[str, Any]) -> list[Any]:
    """All jobs there, the newest first."""
    jobs: list[Any] = client_of(cluster).jobs()
    return jobs


def jobs_table(jobs: list[Any], now: datetime, width: int | None = None) -> str:
    """A line a job, under HEADS, within the width."""
    return in_columns([HEADS, *(job_cells(job, now) for job in jobs)], width, LEAST_NEEDED)


def job_cells(job: Any, now: datetime) -> tuple[str, ...]:
    """One job, under HEADS."""
    reward = "–" if job.reward is None else f"{job.reward:.3f}"
    step = f"{job.step}/{job.total_steps}"
    age = age_text((now - job.created).total_seconds())
    return (job.name, job.phase, job.ready, step, reward, str(job.restarts), age, job.reason)


def age_text(seconds: float) -> str:
    """As kubectl has it: 45s, 12m, 5h, 3d."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{int(seconds // length)}{unit}"
    return f"{int(max(seconds, 0))}s"


def _follow(client: Any, name: str) -> int:
    from rljob.following import LeadLog, final_line, status_lines

    log, last = LeadLog(client, lambda line: click.echo(f"  | {line}")), None
    for job in client.follow(name):
        for line in status_lines(last, job):
            click.echo(line)
        log.notice(job)
        last = job
    log.close()
    assert last is not None, "a job that is followed is seen at least once"
    click.echo(final_line(last))
    return int(last.exit_code)
