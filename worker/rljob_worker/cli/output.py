"""Printing that a reader who left cannot break: a run goes on when its terminal or its pipe is gone."""

import os
import sys

import click


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
