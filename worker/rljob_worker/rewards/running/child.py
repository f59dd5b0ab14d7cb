"""The worker's handle on one reward process: start it, write chunks, read answers, kill it with all it started.

The process leads a group, which the kernel kills when the worker dies. What a reward started and left behind when its
process ended by itself, `receive` kills.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rljob_worker.process.child import Child, command_of, signal_group
from rljob_worker.sandbox.framing import Lines, Message, Outbox, until_death

READ_BYTES = 1 << 16


class RewardProcess(Child):
    """A running `python -m rljob_worker.rewards.running.process`; never blocks, the caller waits on its descriptors."""

    def __init__(self, hello: Message, environment: Mapping[str, str]) -> None:
        requests, self.requests = os.pipe()
        self.results, results = os.pipe()
        command = [*command_of("rljob_worker.rewards.running.process"), str(requests), str(results)]
        super().__init__(command, environment, descriptors=(requests, results), lifeline=True)
        os.close(requests)
        os.close(results)
        os.set_blocking(self.requests, False)
        os.set_blocking(self.results, False)
        self.end = os.pidfd_open(self.pid)
        """Readable once the process has ended; a copy that a reward has forked may keep `results` open."""
        self._unsent = Outbox()
        self._unread = Lines()
        self.send(hello)

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def send(self, message: Message, blobs: Sequence[bytes] = ()) -> None:
        """Queue one message, with bytes behind it, and write what the pipe takes now."""
        self._unsent.add(message, blobs)
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
        returncode = self.returncode()  # whatever it wrote before is there now
        lines: list[bytes] = []
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.results, READ_BYTES):
                lines += self._unread.take(data)
            signal_group(self.pid, signal.SIGKILL)  # it ends, or has closed what it has to answer by
        if returncode is not None:
            signal_group(self.pid, signal.SIGKILL)
            lines += self._unread.take(b"\n" + json.dumps({"died": returncode}).encode() + b"\n")
        return until_death(lines)

    def kill(self) -> None:
        """End the process and every process of its group."""
        super().kill()
        for descriptor in (self.requests, self.results, self.end):
            os.close(descriptor)


def child_environment(pythonpath: Sequence[str | os.PathLike[str]]) -> dict[str, str]:
    """The worker's own environment: what the worker can import, `pythonpath` first; one thread per numeric library."""
    paths = [str(Path(path).absolute()) for path in [*pythonpath, *sys.path]]
    once = os.pathsep.join(dict.fromkeys(paths))
    return {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ, "PYTHONPATH": once}
