"""A job with an elastic group as processes that a test starts and kills one by one: data buffers and workers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rljob_api.planning.plan import Plan
from rljob_api.planning.planner import plan as plan_of
from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_api.v1alpha1 import RLJob
from rljob_api.vocabulary import keys
from rljob_worker.local.pods.environment import WORKER_DEFAULTS
from rljob_worker.process.last_words import TERMINATION_FILE, LastWords, read_last_words
from rljob_worker.process.lifeline import LIFELINE_FD
from rljob_worker.tests.jobs import Run
from rljob_worker.tests.waiting import wait_for

RUN_SECONDS = 5 * TEST_TIMEOUT_SECONDS
TOKEN = "a-secret-of-the-job"


@dataclass
class PodProcesses:
    """A data buffer and its worker."""

    name: str
    buffer: subprocess.Popen[str]
    words: Path
    worker: subprocess.Popen[bytes] | None = None

    def kill(self) -> None:
        """All at once, as a node that is gone."""
        for process in (self.worker, self.buffer):
            if process is not None:
                process.kill()
                process.wait()
        for pipe in (self.buffer.stdin, self.buffer.stdout):
            if pipe is not None:
                pipe.close()

    def code(self) -> int:
        """Wait for the end of the worker."""
        assert self.worker is not None
        return self.worker.wait(RUN_SECONDS)

    @property
    def last_words(self) -> LastWords | None:
        return read_last_words(self.words)


@dataclass
class ElasticRun:
    """One attempt in a folder."""

    plan: Plan
    folder: Path
    attempt: int = 1
    environment: dict[str, str] = field(default_factory=dict)
    """Besides what every process of a pod gets."""
    pods: dict[str, PodProcesses] = field(default_factory=dict)
    _book: dict[str, list[str | None]] = field(default_factory=dict)
    num_started: int = 0

    @property
    def directory(self) -> Path:
        return self.folder / "run"

    @property
    def gang(self) -> list[PodProcesses]:
        return [pod for name, pod in self.pods.items() if name.startswith("train-")]

    def begin(self) -> None:
        """Start the gang."""
        (self.folder / "plan.json").write_text(json.dumps(self.plan.to_json()))
        (self.folder / "token").write_text(TOKEN + "\n")
        self.directory.mkdir(exist_ok=True)
        self._book = {group.name: [None] * group.replicas for group in self.plan.groups}
        for group in self.plan.gang:
            for host in range(group.replicas):
                self._start_buffer(group.name, host)
        self._write_book()
        for group in self.plan.gang:
            for host in range(group.replicas):
                self._start_worker(group.name, host)

    def begin_again(self) -> None:
        """kill -9 of everything, and the next attempt's gang."""
        self.end()
        self.pods.clear()
        self.attempt += 1
        (self.folder / "peers.json").unlink()  # addresses of the attempt before, as a supervisor does
        self.begin()

    def guest(self, number: int, **environment: str) -> PodProcesses:
        """Start a guest; one of that number has ended before."""
        self._start_buffer("rollout", number, **environment)
        self._write_book()
        return self._start_worker("rollout", number, **environment)

    def kill(self, number: int) -> None:
        """kill -9 of all that a guest is."""
        self.pods.pop(f"rollout-{number}").kill()

    def finished(self) -> Run:
        """Wait for the end of the gang."""
        codes = [pod.code() for pod in self.gang]
        for pod in self.gang:
            pod.buffer.send_signal(signal.SIGHUP)  # as a supervisor does
        return Run(max(codes), "", self.directory)

    def steps(self) -> int:
        """The last step that was written down."""
        path = self.directory / "metrics.jsonl"
        return json.loads(path.read_text().splitlines()[-1])["step"] if path.exists() and path.read_text() else 0

    def wait_for_step(self, step: int) -> None:
        def is_there() -> bool:
            assert all(pod.worker is not None and pod.worker.poll() in (None, 0) for pod in self.gang), self.logs
            return self.steps() >= step

        wait_for(is_there, RUN_SECONDS)

    @property
    def logs(self) -> str:
        return "\n".join(f"== {path}\n{path.read_text()[-3000:]}" for path in sorted(self.folder.glob("*.log")))

    def end(self) -> None:
        for pod in self.pods.values():
            pod.kill()

    def _environment(self, group: str, host: int) -> dict[str, str]:
        name = f"{group}-{host}"
        return {
            **os.environ,
            **WORKER_DEFAULTS,
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            keys.ENV_PLAN: str(self.folder / "plan.json"),
            keys.ENV_GROUP: group,
            keys.ENV_HOST_INDEX: str(host),
            keys.ENV_LOCAL_RANK: "0",
            keys.ENV_ATTEMPT: str(self.attempt),
            keys.ENV_PEERS: str(self.folder / "peers.json"),
            keys.ENV_BUFFER: str(self.folder / f"{name}.sock"),
            keys.ENV_TOKEN_FILE: str(self.folder / "token"),
            keys.ENV_RUN_DIR: str(self.directory),
            keys.ENV_CODE: str(self.folder),
            "RLJOB_BUFFER_RETRY_SECONDS": "2",
            **self.environment,
        }

    def _start_buffer(self, group: str, host: int, **environment: str) -> None:
        name = f"{group}-{host}"
        self.num_started += 1
        with (self.folder / f"buffer-{name}.log").open("ab") as log:
            buffer = subprocess.Popen(
                [sys.executable, "-m", "rljob_worker.databuffer"],
                env={**self._environment(group, host), LIFELINE_FD: "0", **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.pods[name] = PodProcesses(name, buffer, self.folder / f"words-{name}-{self.num_started}.json")
        assert buffer.stdout is not None
        self._book[group][host] = f"127.0.0.1:{json.loads(buffer.stdout.readline())['port']}"

    def _write_book(self) -> None:
        aside = self.folder / ".peers"
        aside.write_text(json.dumps(self._book))
        aside.rename(self.folder / "peers.json")

    def _start_worker(self, group: str, host: int, **environment: str) -> PodProcesses:
        pod = self.pods[f"{group}-{host}"]
        words = {TERMINATION_FILE: str(pod.words)}
        with (self.folder / f"worker-{pod.name}.log").open("ab") as log:
            pod.worker = subprocess.Popen(
                [sys.executable, "-m", "rljob_worker.runtime"],
                env={**self._environment(group, host), **words, **environment},
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )
        return pod

    def signal(self, number: int, signum: signal.Signals) -> PodProcesses:
        """Send a signal to the worker of a guest."""
        pod = self.pods[f"rollout-{number}"]
        assert pod.worker is not None
        pod.worker.send_signal(signum)
        return pod


@contextlib.contextmanager
def elastic_run(job: dict[str, Any], folder: Path, **environment: str) -> Iterator[ElasticRun]:
    """The gang of a job, running, without guests."""
    folder.mkdir(parents=True, exist_ok=True)
    run = ElasticRun(plan_of(RLJob.model_validate(job)), folder, environment=environment)
    try:
        run.begin()
        yield run
    finally:
        run.end()
