"""The case as an RLJob, run by `rljob run` as a user would."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from grpo_step.cases import LEARNING_RATE, StepCase
from grpo_step.timing import PARTS, Timing

NAME = "end-to-end"


def job(case: StepCase, data: Path, processes: int, seed: int) -> dict[str, Any]:
    """Defaults wherever TRL's settings do not ask for something else."""
    spec = {
        "models": [{"name": "actor", "path": str(data / "model")}],
        "seed": seed,
        "data": {
            "train": [{"path": str(data / "train.parquet")}],
            "promptColumn": "question",
            "applyChatTemplate": case.chat,
            "batchSize": case.prompts,
            "maxPromptTokens": case.max_prompt_tokens,
        },
        "rewards": [{"name": "parity", "run": "grpo_step.rewards:parity"}],
        "algorithm": {"name": "GRPO", "groupSize": case.group_size, "kl": {"coefficient": 0.0}},
        "workerGroups": [{"name": "train", "accelerator": {"profile": "cpu", "count": processes}}],
        "training": {"learningRate": LEARNING_RATE, "precision": "Float32"},
        "rollout": {"maxResponseTokens": case.max_response_tokens, "temperature": 1.0},
        "checkpoint": {"resume": "Never"},
        "stop": {"steps": case.steps},
    }
    return {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": NAME}, "spec": spec}


def run(case: StepCase, data: Path, out: Path, *, processes: int, threads: int, seed: int) -> Timing:
    """One run of `case.steps` steps from a fresh start."""
    shutil.rmtree(out / NAME, ignore_errors=True)
    path = out / f"{NAME}.yaml"
    path.write_text(yaml.safe_dump(job(case, data, processes, seed)))
    command = [sys.executable, "-m", "rljob_worker.cli", "run", str(path), "--runs-dir", str(out)]
    path_of_rewards = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": os.pathsep.join(path_of_rewards)}
    with (out / "rljob.log").open("w") as log:
        subprocess.run(command, check=True, stdout=log, stderr=log, env={**os.environ, **environment})
    lines = [json.loads(line) for line in (out / NAME / "metrics.jsonl").read_text().splitlines()]
    return Timing.of([_step(line) for line in lines if line["step"] > case.warmup])


def _step(line: dict[str, float]) -> dict[str, float]:
    """A step lasts until the next one begins: the report on it, whose time the line after tells, is part of it."""
    return {
        "seconds": line["time/step_seconds"] + line["time/control_seconds"],
        **{name: line.get(f"time/{name}_seconds", 0.0) for name in PARTS},
        "response_tokens": line["tokens/response_total"],
        "longest": line["response_length/max"],
    }
