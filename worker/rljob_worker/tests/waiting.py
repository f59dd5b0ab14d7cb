"""Waiting for what another process does, with bounds; what /proc says of one."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS

Value = TypeVar("Value")


def wait_for(condition: Callable[[], Value], timeout_seconds: float = TEST_TIMEOUT_SECONDS) -> Value:
    """The first true value of `condition`."""
    deadline = time.monotonic() + timeout_seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)
    return value


def pid_in(path: Path) -> int:
    """The process id in a file, once it is there: a file that is being written is empty at first."""
    return int(wait_for(lambda: path.exists() and path.read_text()))


def is_gone(pid: int) -> bool:
    """Dead, or a zombie that nobody has collected yet."""
    try:
        return _stat(pid)[0] == "Z"
    except FileNotFoundError:
        return True


def parent_of(pid: int) -> int:
    """The process id of its parent."""
    return int(_stat(pid)[1])


def children_of(pid: int) -> list[int]:
    """The process ids of its main thread's children."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
