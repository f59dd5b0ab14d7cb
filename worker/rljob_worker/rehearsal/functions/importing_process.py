"""The process that imports users' functions and tries rewards, from outside: requests, answers, how it ended."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping

from rljob_worker.process.child import exit_code
from rljob_worker.process.lifeline import dying_with_me


class ImportingProcess:
    """`python -m rljob_worker.rehearsal.functions.importing`, whose first request is `message`."""

    def __init__(self, message: bytes, environment: Mapping[str, str]) -> None:
        self._process = self.start(environment)
        self._rest = b""
        self.ask(message)

    def start(self, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "rljob_worker.rehearsal.functions.importing"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,
            preexec_fn=dying_with_me(signal.SIGKILL),
        )

    def ask(self, request: bytes) -> None:
        """One line. A process that is gone says so where its answers are read."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(request + b"\n")
            self._process.stdin.flush()

    def line(self, limit_seconds: float) -> bytes | None:
        """The next line that it answers; None where it ends, or the time is up, before there is one."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + limit_seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    return None
                data = os.read(self._process.stdout.fileno(), 1 << 16)
                if not data:
                    self._process.wait()
                    return None
                self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def ending(self) -> str:
        """How it ended, in words: `ended its process (exit code 3)`."""
        code = exit_code(self._process.returncode)
        how = f"signal {signal.Signals(code - 128).name}" if code > 128 else f"exit code {code}"
        return f"ended its process ({how})"

    def close(self) -> None:
        """End it, with everything that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
