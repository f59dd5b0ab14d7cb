"""A child process, and what its end says."""

from __future__ import annotations


def exit_code(returncode: int) -> int:
    """A shell-style code: death by signal n is 128 + n, as Kubernetes reports it."""
    return returncode if returncode >= 0 else 128 - returncode
