"""A worker's side of the pipe to its launcher.

Metrics are never needed for progress: a launcher that does not read costs snapshots, never time.
"""

import json
import os
from collections.abc import Mapping
from typing import Any

METRICS_FD = "RLJOB_METRICS_FD"
"""Environment variable: the pipe's write end, one JSON object per line."""


class Reporter:
    """Sends snapshots: `send(metrics={...}, progress={...})`.

    `metrics` holds this worker's latest values by file name; `progress` (lead worker only) holds step, totalSteps,
    reward, validation, phase, attempt, checkpoint.
    """

    def __init__(self, fd: int | None) -> None:
        """`fd` None: nobody listens and everything sent is dropped."""
        self._fd = fd
        self._torn = b""
        if fd is not None:
            os.set_blocking(fd, False)
            os.set_inheritable(fd, False)

    @classmethod
    def from_environment(cls) -> "Reporter":
        """The reporter of a process a launcher started; a deaf one otherwise."""
        fd = os.environ.get(METRICS_FD)
        return cls(int(fd) if fd else None)

    def send(self, metrics: Mapping[str, float] | None = None, progress: Mapping[str, Any] | None = None) -> None:
        """Send one snapshot, or drop it if the launcher is behind; a torn line is finished before the next begins."""
        if self._fd is None:
            return
        self._torn = self._unwritten(self._torn)
        if self._torn:
            return
        snapshot = {"metrics": dict(metrics or {}), "progress": dict(progress or {})}
        line = json.dumps(snapshot).encode() + b"\n"
        rest = self._unwritten(line)
        self._torn = b"" if rest == line else rest

    def _unwritten(self, data: bytes) -> bytes:
        """Write what the pipe takes now and return the rest."""
        try:
            while data and self._fd is not None:
                data = data[os.write(self._fd, data) :]
        except BlockingIOError:
            return data
        except BrokenPipeError:
            self._fd = None
        return data
