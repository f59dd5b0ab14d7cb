"""How long workers take to start: from the launcher to the first step, and from a worker's death to the next one.

    python benchmarks/start.py [--pairs 3] [--workers 1 8]

A job of one step on an untrained tiny model, without validation, in two kinds that alternate: workers that import for
themselves (`RLJOB_FORK_WORKERS=off`), and workers forked from one process that has imported. In runs called restart,
rank 0 kills itself in the step of the first attempt.

CPU seconds are those of everything below `rljob run`, two attempts in a restart. Wall seconds: from the moment the
launchers are started until the last worker is in the step; in a restart from the death until then. Memory is what one
worker has for itself alone in the step (`Private_*` of smaps_rollup), the median over workers.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import yaml

from rljob_worker.tiny.make import make
from rljob_worker.tiny.recipe import quick

KINDS = {"imports": "off", "forks": "on"}
STAGE = '''
import json, os, signal, time
from pathlib import Path


def stage(batch, context):
    """Tells when this worker came to the step; in an attempt that is to die, rank 0 then kills itself."""
    attempt, rank = os.environ["RLJOB_ATTEMPT"], os.environ["RLJOB_LOCAL_RANK"]
    rollup = Path("/proc/self/smaps_rollup").read_text().splitlines()
    told = {
        "launched": os.stat(os.environ["RLJOB_PEERS"]).st_mtime,  # written just before the launchers start
        "here": time.time(),
        "private_kib": sum(int(line.split()[1]) for line in rollup if line.startswith("Private_")),
    }
    (Path(os.environ["RLJOB_RUN_DIR"]) / f"told-{attempt}-{rank}.json").write_text(json.dumps(told))
    if (attempt, rank, os.environ["START_DIES"]) == ("1", "0", "yes"):
        os.kill(os.getpid(), signal.SIGKILL)
    return {"calm": [0.0] * len(batch)}
'''


@dataclass(frozen=True)
class Start:
    """One run's figures."""

    cpu_seconds: float
    wall_seconds: float
    private_mib: float


def main() -> int:
    options = _options()
    with tempfile.TemporaryDirectory(prefix="rljob-start-") as name:
        folder = Path(name)
        make(quick(0), folder / "tiny")
        (folder / "start_stage.py").write_text(STAGE)
        print(
            f"{'workers':>7} {'start':8} {'kind':8} {'cpu s':>7} {'wall s':>7} {'MiB':>6}   medians of {options.pairs}"
        )
        for workers in options.workers:
            for start in ("first", "restart"):
                compare(folder, workers, start, options.pairs)
    return 0


def compare(folder: Path, workers: int, start: str, pairs: int) -> None:
    """Run the kinds in turn and print a line for each."""
    runs: dict[str, list[Start]] = {kind: [] for kind in KINDS}
    for _ in range(pairs):
        for kind in KINDS:
            runs[kind].append(run(folder, workers, kind, dies=start == "restart"))
    for kind, starts in runs.items():
        medians = [statistics.median(values) for values in zip(*map(astuple, starts), strict=True)]
        cpu, wall, private = medians
        spread = f"cpu {min(s.cpu_seconds for s in starts):.1f} to {max(s.cpu_seconds for s in starts):.1f}"
        print(f"{workers:7} {start:8} {kind:8} {cpu:7.1f} {wall:7.1f} {private:6.0f}   {spread}", flush=True)


def run(folder: Path, workers: int, kind: str, dies: bool) -> Start:
    """One `rljob run`, from nothing."""
    shutil.rmtree(folder / "runs", ignore_errors=True)
    (folder / "job.yaml").write_text(yaml.safe_dump(job(folder / "tiny", workers)))
    more = {"RLJOB_FORK_WORKERS": KINDS[kind], "START_DIES": "yes" if dies else "no", "OMP_NUM_THREADS": "1"}
    before = _cpu_seconds()
    command = [sys.executable, "-m", "rljob_worker.cli", "run", "job.yaml"]
    done = subprocess.run(command, cwd=folder, env=os.environ | more, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    first = _told(folder, 1)
    last = _told(folder, 2) if dies else first
    began = first[0]["here"] if dies else first[0]["launched"]
    return Start(
        cpu_seconds=_cpu_seconds() - before,
        wall_seconds=max(told["here"] for told in last) - began,
        private_mib=statistics.median(told["private_kib"] for told in last) / 1024,
    )


def job(tiny: Path, workers: int) -> dict[str, Any]:
    """One step of `workers` × 4 rows."""
    stages = [
        {"name": "rollout", "run": "Rollout", "models": ["actor"]},
        {"name": "reward", "run": "Reward", "after": ["rollout"]},
        {"name": "advantage", "run": "Advantage", "after": ["reward"]},
        {"name": "update", "run": "UpdatePolicy", "models": ["actor"], "after": ["advantage"]},
        {
            "name": "told", "run": "start_stage:stage", "after": ["rollout"],
            "reads": ["response_ids"], "writes": ["calm"],
        },
    ]  # fmt: skip
    spec = {
        "models": [{"name": "actor", "path": str(tiny / "model")}],
        "data": {
            "train": [{"path": str(tiny / "train.parquet"), "name": "tiny"}],
            "promptColumn": "question",
            "batchSize": workers,
            "maxPromptTokens": 128,
        },
        "rewards": [{"name": "right", "run": "rljob_worker.rewards:exact_match", "column": "answer"}],
        "algorithm": {"name": "GRPO", "groupSize": 4, "kl": {"coefficient": 0.0}},
        "workerGroups": [{"name": "train", "accelerator": {"profile": "cpu", "count": workers}}],
        "training": {"precision": "Float32"},
        "rollout": {"maxResponseTokens": 8},
        "dag": {"stages": stages},
        "failurePolicy": {"maxRestarts": 1},
        "checkpoint": {"everySteps": 0},
        "stop": {"steps": 1},
        "dataBuffer": {"memory": "64Mi"},
    }
    return {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "start"}, "spec": spec}


def _told(folder: Path, attempt: int) -> list[dict[str, float]]:
    """What the workers of an attempt told, rank 0 first; in an attempt that died some told nothing."""
    files = sorted((folder / "runs" / "start").glob(f"told-{attempt}-*.json"))
    return [json.loads(file.read_text()) for file in files]


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3, help="runs of each kind")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 8], help="numbers of workers to start")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
