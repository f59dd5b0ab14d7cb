"""The worker's handle on one reward process: start it, write chunks, read answers, kill it with all it started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rljob_worker.rewards.running.framing import Lines, Message, Outbox, until_death

READ_BYTES = 1 << 16
_PROGRAM = (sys.executable, "-P", "-m", "rljob_worker.rewards.running.process")


class RewardProcess:
    """A running `python -m rljob_worker.rewards.running.process`; never blocks, the caller waits on its descriptors."""

    def __init__(self, hello: Message, environment: Mapping[str, str]) -> None:
        requests, self.requests = os.pipe()
        self.results, results = os.pipe()
        self._process = subprocess.Popen(
            [*_PROGRAM, str(requests), str(results), str(os.getpid())],
            stdin=subprocess.PIPE,
            pass_fds=(requests, results),
            env=environment,
            start_new_session=True,
        )
        os.close(requests)
        os.close(results)
        os.set_blocking(self.requests, False)
        os.set_blocking(self.results, False)
        self._unsent = Outbox()
        self._unread = Lines()
        self.send(hello)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def send(self, message: Message) -> None:
        """Queue one message and write what the pipe takes now."""
        self._unsent.add(message)
        self.flush()

    def flush(self) -> None:
        """Write what the pipe takes; a process that is gone says so on its results."""
        try:
            self._unsent.write(lambda data: os.write(self.requests, data))
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._unsent.clear()

    def receive(self) -> list[Message]:
        """Every whole message that has arrived; the last is `{"died": code}` when the process ended."""
        lines: list[bytes] = []
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.results, READ_BYTES):
                lines += self._unread.take(data)
            lines += self._unread.take(b'\n{"died": null}\n')
        return until_death(lines)

    def kill(self) -> None:
        """End the process and every process of its group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        os.close(self.requests)
        os.close(self.results)


def environment(pythonpath: Sequence[str | os.PathLike[str]]) -> dict[str, str]:
    """The worker's own environment: what the worker can import, `pythonpath` first; one thread per numeric library."""
    paths = [str(Path(path).absolute()) for path in [*pythonpath, *sys.path]]
    once = os.pathsep.join(dict.fromkeys(paths))
    return {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ, "PYTHONPATH": once}
