"""Pods of a job, and their processes as the host sees them."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ClusterPod:
    """A pod as the API server shows it."""

    body: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.body["metadata"]["name"])

    @property
    def uid(self) -> str:
        return str(self.body["metadata"]["uid"])

    @property
    def node(self) -> str:
        return str(self.body["spec"].get("nodeName", ""))

    @property
    def attempt(self) -> int:
        return int(self.body["metadata"]["labels"]["rljob.dev/attempt"])

    @property
    def is_running(self) -> bool:
        return self.body["status"].get("phase") == "Running" and "deletionTimestamp" not in self.body["metadata"]

    def processes(self, module: str) -> list[int]:
        """Host pids of the pod's processes that run `python -m module`."""
        return [pid for pid in _pids() if _is_of_pod(pid, self.uid) and module in _words(pid)]

    def kill(self, module: str) -> None:
        """SIGKILL to the pod's processes that run `module`."""
        processes = self.processes(module)
        assert processes, f"no process of {self.name} runs {module}"
        for pid in processes:
            os.kill(pid, signal.SIGKILL)


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _is_of_pod(pid: int, uid: str) -> bool:
    groups = _read(pid, "cgroup")
    return f"pod{uid}" in groups or f"pod{uid.replace('-', '_')}" in groups


def _words(pid: int) -> list[str]:
    return _read(pid, "cmdline").split("\0")


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:
        return ""
