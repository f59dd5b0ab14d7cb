"""`rljob report`: runs as a page."""

from collections.abc import Sequence
from pathlib import Path

import click

from rljob_worker.cli.status import find_run
from rljob_worker.metrics.idle import idle_sentence
from rljob_worker.metrics.lines import records_in
from rljob_worker.metrics.response_lengths import lengths_sentence
from rljob_worker.run_page.content import job_spec, max_response_tokens
from rljob_worker.run_page.page import write_page
from rljob_worker.rundir.directory import METRICS, REPORT


def write_report(runs: Sequence[str], runs_dir: Path, out: Path | None) -> int:
    """One file with all of them; that of a single run goes to its folder."""
    directories = [find_run(run, runs_dir).path for run in runs]
    path = out or (directories[0] / REPORT if len(directories) == 1 else Path(REPORT))
    write_page(directories, path)
    for directory in directories:
        if waits := idle_sentence(records_in(directory / METRICS)):
            click.echo(f"{directory.name}: {waits}")
        if lengths := lengths_sentence(records_in(directory / METRICS), max_response_tokens(job_spec(directory))):
            click.echo(f"{directory.name}: {lengths}")
    click.echo(f"wrote {path}")
    return 0


def serve_report(runs: Sequence[str], runs_dir: Path, port: int) -> int:
    """Until Ctrl-C."""
    from rljob_worker.run_page.serve import LOOPBACK, page_server

    directories = [find_run(run, runs_dir).path for run in runs]
    with page_server(directories, port) as server:
        click.echo(f"http://{LOOPBACK}:{server.server_port}/ (Ctrl-C ends it)")
        server.serve_forever()
    return 0
