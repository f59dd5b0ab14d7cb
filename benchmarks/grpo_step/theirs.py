"""TRL in a venv of its own, made on demand, and a run of `trl_train.py` in it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from peer_venv import Venv

from grpo_step.cases import LEARNING_RATE, StepCase
from grpo_step.timing import Timing

TRL = "trl==1.16.0"
_ROOT = Path(__file__).parents[2]
_SCRIPT = Path(__file__).with_name("trl_train.py")


def venv() -> Path:
    """Python of the venv: TRL with the versions of torch and transformers that rljob pins. Installed once."""
    constraints = (_ROOT / "constraints.txt").read_text().splitlines()
    pinned = (line for line in constraints if line.startswith(("torch==", "transformers==")))
    return Venv("trl-venv", (TRL, *pinned)).python()


def run(case: StepCase, data: Path, out: Path, *, processes: int, threads: int, seed: int) -> Timing:
    """One run of `case.steps` steps from a fresh start."""
    result = out / "trl.json"
    result.unlink(missing_ok=True)
    job = {
        "model": str(data / "model"),
        "data": str(data / "train.parquet"),
        "out": str(result),
        "rows": case.rows,
        "group_size": case.group_size,
        "max_response_tokens": case.max_response_tokens,
        "chat": case.chat,
        "steps": case.steps,
        "processes": processes,
        "micro_batches": case.trl_micro_batches,
        "seed": seed,
        "learning_rate": LEARNING_RATE,
    }
    with (out / "trl.log").open("w") as log:
        subprocess.run(_command(processes, job), check=True, stdout=log, stderr=log, env=_environment(threads))
    steps = json.loads(result.read_text())[case.warmup :]
    return Timing.of([step | {"response_tokens": step["response_tokens"] * processes} for step in steps])


def _command(processes: int, job: dict[str, object]) -> list[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return [str(venv()), *(launcher if processes > 1 else []), str(_SCRIPT), json.dumps(job)]


def _environment(threads: int) -> dict[str, str]:
    """As many threads as rljob's workers; nothing is fetched; PYTHONPATH would bring in our packages."""
    own = {
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "error",
    }
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | own
