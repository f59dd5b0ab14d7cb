"""A job that a benchmark runs with `rljob run`, in a folder of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from process_usage import descendants, process_file


class StartedRun:
    """A job whose stages in `waits.py` wait for seconds that a file says, and write down when."""

    def __init__(
        self, folder: Path, job: Mapping[str, Any], waits: str, seconds: Mapping[str, float], updates: str
    ) -> None:
        """waits: the module's text. updates: the file of the stage before the update, a line for each step that begins
        with the step and seconds since the epoch."""
        folder.mkdir(parents=True)
        (folder / "waits.py").write_text(waits)
        (folder / "seconds.json").write_text(json.dumps(seconds))
        (folder / "job.yaml").write_text(yaml.safe_dump(job))
        self.folder, self._updates, self._name = folder, updates, job["metadata"]["name"]
        command = [sys.executable, "-m", "rljob_worker.cli", "run", "job.yaml"]
        with (folder / "output.txt").open("w") as output:
            self.process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output, start_new_session=True)

    def finish(self) -> None:
        if self.process.wait():
            sys.exit((self.folder / "output.txt").read_text())

    def updates(self) -> dict[int, float]:
        """When the wait before each update began, in seconds since the epoch, by step."""
        path = self.folder / self._updates
        lines = path.read_text().splitlines() if path.exists() else []
        return {step: began for step, began, *_ in map(json.loads, lines)}

    def wait_for_step(self, step: int) -> None:
        while step not in self.updates():
            if self.process.poll() is not None:
                sys.exit((self.folder / "output.txt").read_text())
            time.sleep(0.02)

    def metrics(self) -> list[dict[str, float]]:
        path = self.folder / "runs" / self._name / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def processes(self) -> list[int]:
        """All that the run has started, itself included."""
        return [self.process.pid, *descendants(self.process.pid)]

    def private_bytes(self) -> int:
        """Memory of all processes of the run that no other process has."""
        lines = [line for pid in self.processes() for line in process_file(pid, "smaps_rollup").decode().splitlines()]
        return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("Private_Dirty", "Private_Clean")))
