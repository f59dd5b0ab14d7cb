"""Finding and ending every process of a run, also those that left their session or lost their parents.

Every process of a run carries the run's mark in its environment, which children inherit. The kernel shows a
process's first environment to its owner, so the mark finds what no process tree holds any more.
"""

import contextlib
import os
import signal
import time
from pathlib import Path

ENV_MARK = "RLJOB_FAMILY"
"""Environment variable: the mark, one random value per `rljob run`."""


def marked_pids(mark: str, *more: str) -> list[int]:
    """Process ids that carry `mark`, and the entries `more` of the form NAME=value, except this process. Empty where
    the system has no /proc."""
    wanted = {f"{ENV_MARK}={mark}".encode(), *(entry.encode() for entry in more)}
    others = (entry for entry in Path("/proc").glob("[0-9]*") if int(entry.name) != os.getpid())
    return [int(entry.name) for entry in others if wanted.issubset(_first_environment(entry))]


def end_marked_processes(mark: str, *more: str, grace_seconds: float = 2.0, timeout_seconds: float = 10.0) -> bool:
    """Terminate everybody who carries `mark` and `more`, kill who is left after the grace; False if somebody outlives
    even that.

    The grace lets data buffers give their memory back.
    """
    started = time.monotonic()
    _signal_all(marked_pids(mark, *more), signal.SIGTERM)
    while members := marked_pids(mark, *more):
        waited_seconds = time.monotonic() - started
        if waited_seconds > grace_seconds + timeout_seconds:
            return False
        if waited_seconds > grace_seconds:
            # again and again: a process may fork between being listed and being killed
            _signal_all(members, signal.SIGKILL)
        time.sleep(0.01)
    return True


def _signal_all(pids: list[int], signum: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)


def _first_environment(process: Path) -> list[bytes]:
    """`NAME=value` entries; none for a process that is gone, a zombie, or somebody else's."""
    try:
        return (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return []
