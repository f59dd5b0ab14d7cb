"""How the command line prints and ends.

A run goes on when its terminal or its pipe is gone. A command that fails says one clear message on standard error and
returns the right exit code, never a traceback.
"""

import os
import sys
import tempfile
import traceback
from typing import NoReturn

import click

from rljob_api.vocabulary.exit_codes import ExitCode


def say(text: str, *, err: bool = False) -> None:
    """Print a line; from the first failure on, what is printed goes nowhere."""
    try:
        click.echo(text, err=err)
    except OSError:
        silence(err=err)


def silence(*, err: bool = False) -> None:
    """Send standard output (or error) to nowhere, so that Python has nothing to complain about at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, (sys.stderr if err else sys.stdout).fileno())
    os.close(nowhere)


def run_and_exit(app: click.Command, commands: object = None) -> NoReturn:
    """Run the command and leave the process with its exit code; `commands` replace what pods consist of."""
    try:
        code = app.main(prog_name="rljob", standalone_mode=False, obj=commands)
        sys.stdout.flush()
    except click.UsageError as error:
        error.show()
        code = int(ExitCode.INVALID_JOB)
    except (click.Abort, KeyboardInterrupt):
        code = int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # the reader, such as `head`, has enough
        silence()
        code = 0
    except Exception as error:
        code = report_error(error)
    sys.exit(code or 0)


def report_error(error: Exception) -> int:
    """Say what went wrong; returns the exit code. A bug of ours goes to a file with its traceback."""
    known = getattr(error, "exit_code", None)
    if isinstance(known, ExitCode) and known != ExitCode.BUG:
        click.echo(f"rljob: {error}", err=True)
        return int(known)
    with tempfile.NamedTemporaryFile("w", prefix="rljob-bug-", suffix=".log", delete=False) as file:
        traceback.print_exception(error, file=file)
    click.echo(f"rljob: a bug of ours, {type(error).__name__}: {error}; please report {file.name}", err=True)
    return int(ExitCode.BUG)
