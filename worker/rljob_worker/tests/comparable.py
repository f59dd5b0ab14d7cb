"""One job that learns the same however it is run: its numbers are Float64, and every step validates and is saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rljob_worker.tests.jobs import CPU, make_job

PRECISION = 1e-9
"""Relative. Ranks and micro-batches add the same numbers in another order. In float64 that changes the 16th digit, and
after two steps of training the 14th; in float32, where it changes the 7th, a loss near 0 agrees in five."""
NUM_STEPS = 4
"""Of the run on one worker that all others are compared with."""
STEPS = '''
import json, os, sys
from pathlib import Path

def note(batch, context):
    """Writes down the steps that a rank goes through, and what its process has imported; makes trouble when asked."""
    with Path(__file__).with_name(f"steps-{context.dp_rank}").open("a") as file:
        file.write(f"{context.step}\\n")
    Path(os.environ["RLJOB_RUN_DIR"], f"modules-{context.dp_rank}.json").write_text(json.dumps(sorted(sys.modules)))
    if Path(__file__).with_name("trouble.json").exists():
        from rljob_worker.tests import fault_injection  # it imports what a worker otherwise does not
        fault_injection.stage(batch, context)
    return {"noted": [0.0] * len(batch)}
'''
FILES = {"steps.py": STEPS}
"""What the job needs besides it."""


def on_workers(count: int) -> list[dict[str, Any]]:
    """One pod."""
    return [{"name": "train", "accelerator": CPU | {"count": count}}]


def comparable_job(tiny: Path, groups: list[dict[str, Any]], num_steps: int, **spec: Any) -> dict[str, Any]:
    """The first of the groups generates and the last trains."""
    # 16 rows of about 30 tokens are two optimizer steps: two micro-batches each on one worker, one each on four
    training = {"learningRate": 1.0e-3, "precision": "Float64", "tokensPerMicroBatch": 128, "miniBatchRows": 8}
    fields = {
        "workerGroups": groups,
        "dag": {"stages": _stages(generates=groups[0]["name"], trains=groups[-1]["name"])},
        "training": training,
        "algorithm": {"name": "GRPO", "groupSize": 4, "kl": {"coefficient": 0.01}},
        "validation": {"maxRows": 8, "everySteps": 1},  # also where a run is stopped
        "checkpoint": {"everySteps": 1},
        "stop": {"steps": num_steps},
    }
    return make_job(tiny, **fields | spec)


def _stages(generates: str, trains: str) -> list[dict[str, Any]]:
    note = {"run": "steps:note", "after": ["rollout"], "reads": ["response_ids"], "writes": ["noted"]}
    update = {"run": "UpdatePolicy", "models": ["actor"], "after": ["advantage"], "balance": "Tokens"}
    return [
        {"name": "rollout", "run": "Rollout", "models": ["actor"], "group": generates},
        {"name": "reward", "run": "Reward", "after": ["rollout"], "group": generates},
        {"name": "note", **note, "group": trains},
        {"name": "reference", "run": "LogProbs", "models": ["reference"], "after": ["rollout"], "group": trains},
        {"name": "old", "run": "LogProbs", "models": ["actor"], "after": ["rollout"], "group": trains},
        {"name": "advantage", "run": "Advantage", "after": ["reward", "reference", "old", "note"], "group": trains},
        {"name": "update", **update, "group": trains},
    ]
