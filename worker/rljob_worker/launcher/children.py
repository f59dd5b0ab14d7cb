"""The workers of one pod as operating-system processes."""

import contextlib
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rljob_api.vocabulary import keys
from rljob_worker.forkserver.client import ForkServer
from rljob_worker.forkserver.environment import ROOT
from rljob_worker.forkserver.request import WorkerRequest, command_of
from rljob_worker.last_words import TERMINATION_FILE
from rljob_worker.launcher.pod import Pod, environment
from rljob_worker.metrics.reporter import METRICS_FD
from rljob_worker.process.lifeline import LIFELINE_FD

RUNTIME = "rljob_worker.runtime"
"""The module a worker is."""


@dataclass(slots=True)
class Child:
    """One worker that the fork server was asked for; `pipe` is the read end of its metrics pipe."""

    name: str
    rank: int
    pipe: int
    last_words: Path
    pid: int | None = None
    """None until it runs."""
    returncode: int | None = None
    """None until it ended; as `os.waitstatus_to_exitcode` has it."""
    _waiting: list[signal.Signals] = field(default_factory=list)

    @property
    def running(self) -> bool:
        """Whether it has not ended; one that has not begun yet counts."""
        return self.returncode is None

    def begun(self, pid: int) -> None:
        """It runs; what was to be signalled meanwhile reaches it now."""
        self.pid = pid
        for signum in self._waiting:
            self.send_signal(signum)

    def send_signal(self, signum: signal.Signals) -> None:
        """Reach only the worker: what it started is the worker's to stop."""
        if self.pid is None:
            self._waiting.append(signum)
        elif self.running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def signal_group(self, signum: signal.Signals) -> None:
        """Reach the worker and whatever it started that stayed in its process group."""
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signum)


def worker_environment() -> dict[str, str]:
    """This process's environment without what only a launcher uses: its lifeline, and the root of its run.

    A run that a worker starts has a root of its own.
    """
    return {name: value for name, value in environment().items() if name not in (LIFELINE_FD, ROOT)}


def start_worker(
    server: ForkServer, pod: Pod, local_rank: int, command: Sequence[str] | None, words_dir: Path
) -> Child:
    """Have one worker started in its own process group; it dies with this process. Last words go into `words_dir`.

    `command` replaces the worker's own program.
    """
    name = pod.worker_name(local_rank)
    last_words = words_dir / f"termination-{name}.json"
    last_words.unlink(missing_ok=True)
    read_end, write_end = os.pipe()
    extra = {
        keys.ENV_LOCAL_RANK: str(local_rank),
        TERMINATION_FILE: str(last_words),
        "PYTHONUNBUFFERED": "1",
    }
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, write_end)
        output, errors = 1, 2
        if pod.log_dir:
            log = stack.enter_context((pod.log_dir / f"worker-{name}.log").open("ab"))
            output = errors = log.fileno()
        request = WorkerRequest(
            name=name,
            module="" if command else RUNTIME,
            command=tuple(command or command_of(RUNTIME)),
            environment=worker_environment() | extra,
            pipe_variable=METRICS_FD,
            output=output,
            errors=errors,
            pipe=write_end,
        )
        server.ask(request)
    os.set_blocking(read_end, False)
    return Child(name, pod.rank(local_rank), read_end, last_words)
