"""A pytest plugin: of several processes that collect the same tests, one compiles a module and the others read it.

They collect the same files at the same time. Without this, in a fresh checkout, each of them compiles every test file,
whose asserts pytest rewrites, and all that it imports, torch among it: half of the time that collection takes.
"""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Iterator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[pytest.CollectReport]:
    """A file's collector imports it: one process at a time."""
    if sys.dont_write_bytecode or not isinstance(collector, pytest.Module):
        return (yield)
    with collector.path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
        return (yield)
