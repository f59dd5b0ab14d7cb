"""A real `rljob run` as a person has it in a terminal: running, watched, interrupted."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import yaml

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.tests.jobs import Run
from rljob_worker.tests.session_root import TEST_MARK, job_environment
from rljob_worker.tests.waiting import wait_for

RUN_SECONDS = 5 * TEST_TIMEOUT_SECONDS
Value = TypeVar("Value")


class LiveRun:
    """A running `rljob run`; its supervisor is `process`."""

    def __init__(self, job: dict[str, Any], folder: Path, *arguments: str) -> None:
        (folder / "job.yaml").write_text(yaml.safe_dump(job))
        self.directory = folder / "runs" / job["metadata"]["name"]
        self._output = folder / "output.txt"
        # everything the run starts inherits it, so it finds them all
        self._mark = f"{TEST_MARK}={secrets.token_hex(8)}"
        command = [sys.executable, "-m", "rljob_worker.cli", "run", "job.yaml", *arguments]
        environment = job_environment() | dict([self._mark.split("=")])
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, cwd=folder, env=environment
            )

    @property
    def output(self) -> str:
        return self._output.read_text()

    def wait_for(self, condition: Callable[[], Value]) -> Value:
        """The first true value of `condition`; fails when the run ends before that."""

        def is_there() -> Value:
            value = condition()
            assert value or self.process.poll() is None, self._so_far().output + self._so_far().logs
            return value

        return wait_for(is_there, RUN_SECONDS)

    def wait_for_step(self, step: int) -> None:
        """Until metrics.jsonl has the step."""
        metrics = self.directory / "metrics.jsonl"
        self.wait_for(lambda: metrics.exists() and f'{{"step": {step},' in metrics.read_text())

    def pids(self, module: str = "") -> list[int]:
        """Living processes of the run whose command names `module`, the supervisor aside."""
        result = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        return [pid for pid in result if pid != self.process.pid and self._is_ours(pid, module)]

    def threads(self) -> dict[str, int]:
        """How many threads each living process of the run has, the supervisor included, by its id and command."""
        result = {}
        for pid in (self.process.pid, *self.pids()):
            with suppress(OSError):  # it has ended meanwhile
                command = _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace")[:80]
                result[f"{pid} {command}"] = len(list((Path("/proc") / str(pid) / "task").iterdir()))
        return result

    def finished(self) -> Run:
        """Wait for the end, and for every process to be gone."""
        self.process.wait(RUN_SECONDS)
        wait_for(lambda: not self.pids(), RUN_SECONDS)
        return self._so_far()

    def _so_far(self) -> Run:
        return Run(self.process.returncode, self.output, self.directory)

    def _is_ours(self, pid: int, module: str) -> bool:
        environment = _read(pid, "environ").split(b"\0")
        return self._mark.encode() in environment and module.encode() in _read(pid, "cmdline")


@contextmanager
def live_run(job: dict[str, Any], folder: Path, *arguments: str) -> Iterator[LiveRun]:
    """Starts `rljob run job.yaml` in `folder`; nothing of it outlives the block."""
    run = LiveRun(job, folder, *arguments)
    try:
        yield run
    finally:
        run.process.kill()
        run.finished()


def _read(pid: int, name: str) -> bytes:
    """Empty for a process that is gone, a zombie, or somebody else's."""
    try:
        return (Path("/proc") / str(pid) / name).read_bytes()
    except OSError:
        return b""
