"""Plans as they are printed, kept beside this file. `python -m rljob_worker.cli.plan.tests.golden` writes them anew."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rljob_api.loading.load import parse_job
from rljob_api.memory.model_shape import parse_shape
from rljob_api.memory.tests.test_model_shape import QWEN3_8B
from rljob_api.planning.planner import plan
from rljob_worker.cli.plan.sheets import sheets_of
from rljob_worker.cli.plan.show import written

FOLDER = Path(__file__).parent
WIDTHS = (80, 120)

TOY = """\
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata: {name: toy}
spec:
  models: [{name: actor, path: models/tiny}]
  data: {train: [{path: train.parquet}], batchSize: 32, maxPromptTokens: 32}
  rewards: [{name: correct, run: "rljob_worker.rewards:final_number", column: answer}]
  algorithm: {name: GRPO, groupSize: 8}
  workerGroups: [{name: train, accelerator: {profile: cpu, count: 2}}]
  rollout: {maxResponseTokens: 20}
  stop: {steps: 40}
"""

REAL = """\
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata: {name: qwen3-8b-mathematics}
spec:
  models: [{name: actor, path: models/Qwen3-8B}]
  data: {train: [{path: data/train.parquet}], batchSize: 512, maxPromptTokens: 2048}
  rewards: [{name: correct, run: "rljob_worker.rewards:math_answer", column: answer}]
  algorithm: {name: GRPO, groupSize: 8}
  workerGroups:
    - {name: rollout, replicas: 4, accelerator: {profile: nvidia-h100, count: 8}}
    - {name: train, replicas: 4, accelerator: {profile: nvidia-h100, count: 8}}
  training: {miniBatchRows: 1024, parallelism: {tensor: 4, context: 2}}
  rollout: {engine: VLLM, maxResponseTokens: 8192, parallelism: {tensor: 2}}
  dataBuffer: {memory: 64Gi}
  stop: {steps: 100}
"""

JOBS: Mapping[str, str] = {"toy": TOY, "real": REAL}
SHAPES = {"models/Qwen3-8B": parse_shape(QWEN3_8B)}


def path_of(name: str, width: int) -> Path:
    """Where the plan of a job is kept."""
    return FOLDER / f"{name}-{width}.txt"


def text_of(name: str, width: int) -> str:
    """What is printed of it."""
    result = plan(parse_job(JOBS[name]), shapes=SHAPES)
    return written(result, sheets_of(result, SHAPES), width) + "\n"


if __name__ == "__main__":
    for job in JOBS:
        for columns in WIDTHS:
            path_of(job, columns).write_text(text_of(job, columns), encoding="utf-8")
