"""The gang's lives between kills: start all processes, watch them, kill, and see that everything ends."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from killed_gang.job import plan_for
from killed_gang.memory import MemorySample, private_bytes
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_worker.databuffer.store.segment_files import ARENA, SPILL
from rljob_worker.databuffer.tests.gang import Gang, start

END_SECONDS = 60.0
"""A gang that has lost a process has ended by then, all of it."""
START_SECONDS = 300.0
BUFFER_TIMEOUTS = {"RLJOB_BUFFER_RETRY_SECONDS": "10", "RLJOB_BUFFER_START_SECONDS": "300"}
"""About as in a job, and not as in tests; twice as much of the first where the cores are shared."""
LOOK_SECONDS = 2.0


class Wrong(Exception):
    """What a soak must not see."""


@dataclass
class Life:
    """One attempt."""

    number: int
    gang: Gang
    workers: dict[str, subprocess.Popen[bytes]]
    samples: list[MemorySample] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def processes(self) -> dict[str, subprocess.Popen]:
        return {**self.gang.processes, **self.workers}

    def refuse_ended(self) -> None:
        for name, process in self.processes().items():
            if process.poll() is not None:
                raise Wrong(f"{name} ended with {process.returncode} in life {self.number}, and nobody had killed it")

    def look(self, step: int) -> None:
        """How much memory everybody has."""
        age = time.monotonic() - self.began
        for name, process in self.processes().items():
            result = private_bytes(process.pid)
            if result is not None:
                self.samples.append(MemorySample(self.number, name, age, step, result))


def committed(directory: Path) -> int:
    path = directory / "committed"
    return int(path.read_text()) if path.exists() else 0


def begin(directory: Path, number: int, memory: str, spill: str) -> Life:
    """Everybody starts after the last step that was committed. What killed ones left behind is gone then."""
    gang = Gang(plan_for(memory, spill), directory)
    gang.write_files()
    (directory / "peers.json").unlink(missing_ok=True)
    for name, host in gang.hosts():
        gang.processes[f"{name}-{host}"] = start(gang, name, host, RLJOB_ATTEMPT=str(number), **BUFFER_TIMEOUTS)
    for name, process in gang.processes.items():
        assert process.stdout is not None
        gang.ready[name] = json.loads(process.stdout.readline())
    gang.write_book()
    for kind in (ARENA, *[SPILL] * bool(spill)):
        paths = list(directory.glob(f"{kind.prefix}*"))
        if len(paths) != len(gang.processes):
            raise Wrong(f"{len(paths)} files {kind.prefix}* of {len(gang.processes)} data buffers, some of killed ones")
    first = committed(directory) + 1
    ranks = [(group.name, rank) for group in gang.plan.groups for rank in range(group.num_workers)]
    with open(directory / "errors", "ab") as errors:
        workers = {
            f"{group} {rank}": subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "killed_gang.worker",
                    *map(str, (directory, group, rank, number, first, memory, spill)),
                ],
                env={**os.environ, "PYTHONPATH": f"{Path(__file__).parents[1]}:{os.environ.get('PYTHONPATH', '')}"},
                stderr=errors,
            )
            for group, rank in ranks
        }
    return Life(number, gang, workers)


def live(life: Life, seconds: float, directory: Path, report: Callable[[Life], None]) -> None:
    """Undisturbed, for so long after its first commit. Raises Wrong when that does not come."""
    before = committed(directory)
    while committed(directory) == before:
        if time.monotonic() - life.began > START_SECONDS:
            raise Wrong(f"life {life.number} has committed nothing in {START_SECONDS:.0f} s")
        life.refuse_ended()
        time.sleep(0.1)
    life.began = time.monotonic()
    while (left := life.began + seconds - time.monotonic()) > 0:
        time.sleep(min(left, LOOK_SECONDS))
        life.refuse_ended()
        life.look(committed(directory))
        report(life)


def kill_one(life: Life, choice: random.Random) -> str:
    """Somebody, without a warning; the others must end by themselves where they can know. Returns who it was."""
    name = choice.choice(sorted(life.processes()))
    life.processes()[name].kill()
    if name in life.workers:  # its launcher sees it, and ends the pod; nobody else can know
        for worker in life.workers.values():
            worker.kill()
    return name


def end(life: Life) -> float:
    """Everybody ends; returns the seconds it took. Raises Wrong for who hangs, or ends in another way than named."""
    begin = time.monotonic()
    codes = {name: _code(name, process) for name, process in life.workers.items()}
    seconds = time.monotonic() - begin
    for process in life.gang.processes.values():
        if process.poll() is None:
            process.send_signal(signal.SIGHUP)
    codes |= {name: _code(name, process) for name, process in life.gang.processes.items()}
    _refuse(codes, life)
    for process in life.gang.processes.values():
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
    return seconds


def _code(name: str, process: subprocess.Popen) -> int:
    try:
        return process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        raise Wrong(f"{name} hangs: {END_SECONDS:.0f} s after a kill it is still there") from None


def _refuse(codes: Mapping[str, int], life: Life) -> None:
    ends = (ExitCode.DONE, ExitCode.RETRY, -signal.SIGKILL)
    wrong = {name: code for name, code in codes.items() if code not in ends}
    if wrong:
        raise Wrong(f"life {life.number} ended with {wrong}, where only {[int(item) for item in ends]} are expected")
