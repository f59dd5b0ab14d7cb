"""The workers of one pod as operating-system processes."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rljob_api.vocabulary import keys
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_worker.forkserver.environment import ROOT
from rljob_worker.forkserver.forking import ForkRequest, fork
from rljob_worker.launcher.pod import PodIdentity
from rljob_worker.metrics.reporter import METRICS_FD
from rljob_worker.process.child import command_of, signal_group
from rljob_worker.process.last_words import TERMINATION_FILE
from rljob_worker.process.lifeline import LIFELINE_FD

RUNTIME = "rljob_worker.runtime"
"""The module a worker is."""


@dataclass(slots=True)
class WorkerProcess:
    """A worker that this process started, and the read end of its metrics pipe."""

    name: str
    rank: int
    pipe: int
    last_words: Path
    pid: int | None
    """None where there was no process left for it."""
    returncode: int | None = None
    """None until it ended; as `os.waitstatus_to_exitcode` has it."""

    @property
    def running(self) -> bool:
        return self.returncode is None

    def has_ended(self) -> bool:
        """Whether it has ended since the last call."""
        if self.returncode is not None:
            return False
        if self.pid is None:
            self.returncode = int(ExitCode.RETRY)
            return True
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            self.returncode = os.waitstatus_to_exitcode(status)
        return pid != 0

    def send_signal(self, signum: signal.Signals) -> None:
        """Reach only the worker: what it started is the worker's to stop."""
        if self.pid is not None and self.running:
            os.kill(self.pid, signum)

    def signal_group(self, signum: signal.Signals) -> None:
        """Signal the worker and everything it started that stayed in its process group."""
        if self.pid is not None:
            signal_group(self.pid, signum)


def worker_environment(own: Mapping[str, str]) -> dict[str, str]:
    """A launcher's own environment without what only a launcher uses: its lifeline, and the root of its run.

    A run that a worker starts has a root of its own.
    """
    return {name: value for name, value in own.items() if name not in (LIFELINE_FD, ROOT)}


@dataclass(frozen=True, slots=True)
class PodLaunch:
    """How the workers of a pod are started."""

    pod: PodIdentity
    environment: Mapping[str, str]
    command: Sequence[str] | None
    """In place of the worker's own program."""
    words: Path
    """A directory for last words."""
    forks: bool
    """Whether they may be forks of this process."""
    drop: Sequence[Callable[[], object]]
    """Called in a fork: rids it of what is this process's alone."""


def start_workers(start: PodLaunch) -> list[WorkerProcess]:
    """All workers of the pod, each in a process group of its own; they die with this process."""
    workers: list[WorkerProcess] = []
    for local_rank in range(start.pod.num_workers):
        workers.append(_start_worker(start, local_rank, [partial(os.close, worker.pipe) for worker in workers]))
    return workers


def _start_worker(start: PodLaunch, local_rank: int, drop: Sequence[Callable[[], object]]) -> WorkerProcess:
    name = start.pod.worker_name(local_rank)
    last_words = start.words / f"termination-{name}.json"
    last_words.unlink(missing_ok=True)
    read_end, write_end = os.pipe()
    extra = {keys.ENV_LOCAL_RANK: str(local_rank), TERMINATION_FILE: str(last_words), "PYTHONUNBUFFERED": "1"}
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, write_end)
        output, errors = 1, 2
        if start.pod.log_dir:
            log = stack.enter_context((start.pod.log_dir / f"worker-{name}.log").open("ab"))
            output = errors = log.fileno()
        request = ForkRequest(
            name=name,
            module="" if start.command else RUNTIME,
            command=tuple(start.command or command_of(RUNTIME)),
            environment={**start.environment, **extra},
            pipe_variable=METRICS_FD,
            output=output,
            errors=errors,
            pipe=write_end,
        )
        pid = _forked(request, start.forks, [*start.drop, *drop, partial(os.close, read_end)])
    os.set_blocking(read_end, False)
    return WorkerProcess(name, start.pod.rank(local_rank), read_end, last_words, pid)


def _forked(request: ForkRequest, forks: bool, drop: Sequence[Callable[[], object]]) -> int | None:
    try:
        return fork(request, forks, drop)
    except OSError as error:  # no process or no memory left here and now
        print(f"launcher: cannot start {request.name}: {error.strerror}", flush=True)
        return None
