"""The workers of one pod as operating-system processes."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rljob_worker.launcher.last_words import TERMINATION_FILE
from rljob_worker.launcher.lifeline import LIFELINE_FD, dying_with_me
from rljob_worker.launcher.pod import Pod, environment
from rljob_worker.metrics.reporter import METRICS_FD

PYTHON = (sys.executable, "-P")
"""Without the current directory on the path: a file there must not stand in for a module of ours."""
RUNTIME = (*PYTHON, "-m", "rljob_worker.runtime")


@dataclass(slots=True)
class Child:
    """One worker; `pipe` is the read end of its metrics pipe."""

    name: str
    rank: int
    process: subprocess.Popen[bytes]
    pipe: int
    last_words: Path

    @property
    def running(self) -> bool:
        return self.process.returncode is None

    def signal_group(self, signum: signal.Signals) -> None:
        """Reach the worker and whatever it started that stayed in its process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signum)


def worker_environment() -> dict[str, str]:
    """This process's environment without what only a launcher uses: workers do not inherit the lifeline."""
    return {name: value for name, value in environment().items() if name != LIFELINE_FD}


def start_worker(pod: Pod, local_rank: int, command: Sequence[str], words_dir: Path) -> Child:
    """Start one worker in its own process group; it dies with this process. Last words go into `words_dir`."""
    name = pod.worker_name(local_rank)
    last_words = words_dir / f"termination-{name}.json"
    last_words.unlink(missing_ok=True)
    read_end, write_end = os.pipe()
    extra = {
        "RLJOB_LOCAL_RANK": str(local_rank),
        METRICS_FD: str(write_end),
        TERMINATION_FILE: str(last_words),
        "PYTHONUNBUFFERED": "1",
    }
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, write_end)
        output = None
        if pod.log_dir:
            output = stack.enter_context((pod.log_dir / f"worker-{name}.log").open("ab"))
        process = subprocess.Popen(
            command,
            env=worker_environment() | extra,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(write_end,),
            process_group=0,
            preexec_fn=dying_with_me(signal.SIGKILL),
        )
    os.set_blocking(read_end, False)
    return Child(name, pod.rank(local_rank), process, read_end, last_words)
