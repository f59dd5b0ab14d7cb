"""`rljob report`: runs as a page."""

from collections.abc import Sequence
from pathlib import Path

import click

from rljob.columns import in_columns
from rljob_worker.cli.status import find_run
from rljob_worker.cli.views.figures import MISSING, format_number
from rljob_worker.metrics.finals import differing, final_figures
from rljob_worker.metrics.idle import idle_sentence
from rljob_worker.metrics.lines import records_in
from rljob_worker.metrics.response_lengths import lengths_sentence
from rljob_worker.metrics.tables import flattened
from rljob_worker.run_page.content import job_spec, max_response_tokens
from rljob_worker.run_page.page import write_page
from rljob_worker.rundir.directory import METRICS, REPORT, RunDirectory


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
    if len(directories) > 1:
        click.echo(finals_table(directories))
    click.echo(f"wrote {path}")
    return 0


def finals_table(directories: Sequence[Path]) -> str:
    """A line a run: the fields in which their jobs differ, its phase, and the figures at its end."""
    configs = [dict(flattened(job_spec(directory))) for directory in directories]
    figures = [final_figures(records_in(directory / METRICS)) for directory in directories]
    fields, metrics = differing(configs), dict.fromkeys(name for row in figures for name in row)
    rows = [("NAME", *fields, "PHASE", *metrics)]
    for directory, config, row in zip(directories, configs, figures, strict=True):
        note = RunDirectory(directory).read_note()
        cells = (*(config.get(field, MISSING) for field in fields), note.phase if note else MISSING)
        rows.append((directory.name, *cells, *(format_number(row.get(name)) for name in metrics)))
    return in_columns(rows)


def serve_report(runs: Sequence[str], runs_dir: Path, port: int) -> int:
    """Until Ctrl-C."""
    from rljob_worker.run_page.serve import LOOPBACK, page_server

    directories = [find_run(run, runs_dir).path for run in runs]
    with page_server(directories, port) as server:
        click.echo(f"http://{LOOPBACK}:{server.server_port}/ (Ctrl-C ends it)")
        server.serve_forever()
    return 0
