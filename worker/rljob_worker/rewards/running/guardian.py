"""The leader of a reward process's group: it runs no user code, so it can always clean up.

    worker --stdin pipe--> guardian --fork--> the process that runs rewards --> whatever they start

When the worker dies (its end of the pipe closes) or the rewards' process ends, the guardian kills the whole process
group, itself included: nothing a reward started outlives its worker, even when the reward hangs inside a C extension.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from typing import NoReturn

from rljob_worker.process.lifeline import ignore_what_means_workers

CHECK_SECONDS = 5.0
"""How often the parent is looked at, for the case that a copy of the pipe's other end outlives the worker."""


def guard(child: int, worker: int, results: int) -> NoReturn:
    """Wait for the worker to die or `child` to end; report the end on `results`; kill the group."""
    ignore_what_means_workers()
    wake, wake_in = os.pipe()
    for end in (wake, wake_in):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake_in)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while os.getppid() == worker:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            _report(results, os.waitstatus_to_exitcode(status))
            break
        ready, _, _ = select.select([sys.stdin.fileno(), wake], [], [], CHECK_SECONDS)
        if sys.stdin.fileno() in ready:
            break
        if wake in ready:
            os.read(wake, 512)
    os.killpg(0, signal.SIGKILL)
    os._exit(1)  # unreachable: this process belongs to the group


def _report(results: int, code: int) -> None:
    """Starts with a line end: the rewards' process may have died inside a line."""
    try:
        os.write(results, b"\n" + json.dumps({"died": code}).encode() + b"\n")
    except OSError:  # the worker has closed its end: it asked for the end and waits for no answer
        return
