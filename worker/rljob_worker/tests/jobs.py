"""RLJobs on the tiny model for tests, and a way to run them as a user does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.tests.documents import job_document
from rljob_worker.tests.session_root import job_environment

CPU = {"profile": "cpu", "count": 1}

RLJOB = (sys.executable, "-P", "-m", "rljob_worker.cli")
"""The console script, from any folder."""


def make_job(tiny: Path, name: str = "test", **spec: Any) -> dict[str, Any]:
    """A small GRPO job: 4 prompts x 4 responses, colocated on two workers; `spec` replaces top-level fields."""
    defaults: dict[str, Any] = {
        "models": [{"name": "actor", "path": str(tiny / "model")}],
        "seed": 3,
        "data": {
            "train": [{"path": str(tiny / "train.parquet"), "name": "tiny"}],
            "validation": [{"path": str(tiny / "validation.parquet"), "name": "tiny"}],
            "promptColumn": "question",
            "batchSize": 4,
        },
        # a model that knows nothing is never right, and equal rewards teach nothing
        "rewards": [{"name": "varied", "run": "rljob_worker.tests.fault_injection:reward"}],
        "algorithm": {"name": "GRPO", "groupSize": 4, "kl": {"coefficient": 0.0}},
        "workerGroups": [{"name": "train", "accelerator": {"profile": "cpu", "count": 2}}],
        "training": {"learningRate": 1.0e-3, "precision": "Float32", "tokensPerMicroBatch": 256},
        "rollout": {"maxResponseTokens": 12},
        "validation": {"maxRows": 8},
        "checkpoint": {"everySteps": 2},
        "stop": {"steps": 2},
    }
    fields = defaults | spec
    fields["data"] = {"maxPromptTokens": 128} | fields["data"]  # and a response: the model reads 512
    memory = "96Mi" if len(fields["workerGroups"]) > 1 else "32Mi"  # weights between groups take 64Mi
    return job_document(
        name, **{"dataBuffer": {"memory": memory, "deadlineSeconds": int(TEST_TIMEOUT_SECONDS)}} | fields
    )


def troubled_job(tiny: Path, **spec: Any) -> dict[str, Any]:
    """The test job on one worker, without validation, with a checkpoint every step, and with trouble in reach.

    Of several worker groups the first generates and the last trains.
    """
    job = make_job(
        tiny, **{"workerGroups": [{"name": "train", "accelerator": CPU}], "checkpoint": {"everySteps": 1}} | spec
    )
    fields = job["spec"]
    del fields["data"]["validation"]
    fields["rewards"][0]["timeoutSeconds"] = 1.0
    groups = [group["name"] for group in fields["workerGroups"]]
    fields["dag"] = {"stages": _stages(generates=groups[0], trains=groups[-1])}
    return job


def _stages(generates: str, trains: str) -> list[dict[str, Any]]:
    fault = {
        "run": "rljob_worker.tests.fault_injection:stage",
        "after": ["rollout"],
        "reads": ["response_ids"],
        "writes": ["calm"],
    }
    update = {"run": "UpdatePolicy", "models": ["actor"], "after": ["advantage"], "balance": "Tokens"}
    return [
        {"name": "rollout", "run": "Rollout", "models": ["actor"], "group": generates},
        {"name": "reward", "run": "Reward", "after": ["rollout"], "group": generates},
        {"name": "trouble", **fault, "group": trains},
        {"name": "advantage", "run": "Advantage", "after": ["reward", "trouble"], "group": trains},
        {"name": "update", **update, "group": trains},
    ]


DISAGGREGATED = [
    {"name": "rollout", "accelerator": CPU},
    {"name": "train", "replicas": 2, "accelerator": CPU},
]
"""One generating worker, two training workers in pods of their own."""

PPO = {"name": "PPO", "groupSize": 2, "kl": {"coefficient": 0.01}, "critic": {"learningRate": 1.0e-3}}


@dataclass(frozen=True)
class Run:
    """A finished `rljob run`."""

    code: int
    output: str
    directory: Path

    @property
    def metrics(self) -> list[dict[str, float]]:
        return [json.loads(line) for line in (self.directory / "metrics.jsonl").read_text().splitlines()]

    @property
    def logs(self) -> str:
        """What the processes of the run wrote, for the message of a failed assertion."""
        return "\n".join(f"== {path}\n{path.read_text()[-3000:]}" for path in sorted(self.directory.rglob("*.log")))


@contextmanager
def started_job(job: dict[str, Any], folder: Path, output: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """`rljob run` of a job in `folder`, under way, and its run directory; killed where it does not end inside."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    command = [*RLJOB, "run", str(path), "--runs-dir", str(folder / "runs")]
    with (
        output.open("wb") as out,
        subprocess.Popen(command, stdout=out, stderr=out, env=job_environment(), cwd=folder) as process,
    ):
        try:
            yield process, folder / "runs" / job["metadata"]["name"]
        finally:
            process.kill()


def kill_pod(run_dir: Path, pod: str) -> None:
    """kill -9 of every process of a pod of `rljob run`, found by the logs that it writes. pod: `rollout-0`."""
    names, pids = (f"launcher-{pod}", f"databuffer-{pod}", f"worker-{pod}-"), set[int]()
    for descriptor in Path("/proc").glob("[0-9]*/fd/[12]"):
        with suppress(OSError):
            log = descriptor.readlink()
            if log.is_relative_to(run_dir) and log.name.startswith(names):
                pids.add(int(descriptor.parts[2]))
    assert pids, f"no process writes logs of {pod} in {run_dir}"
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def run_job(
    job: dict[str, Any], folder: Path, *arguments: str, timeout_seconds: float = 4 * TEST_TIMEOUT_SECONDS, **env: str
) -> Run:
    """Write the job to `folder` and run it there; the run directory is `folder/runs/NAME`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    done = subprocess.run(
        [*RLJOB, "run", str(path), "--runs-dir", str(folder / "runs"), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        env={**job_environment(), **env},
        cwd=folder,
    )
    return Run(done.returncode, done.stdout + done.stderr, folder / "runs" / job["metadata"]["name"])
