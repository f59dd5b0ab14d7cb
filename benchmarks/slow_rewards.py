"""What slow rewards cost a step: rows are rewarded while other rows are still generated, and while stages run beside.

    python benchmarks/slow_rewards.py [--seconds 0.2] [--rows 64] [--tokens 256] [--steps 8] [--pairs 3]

A job on an untrained tiny model whose one reward waits `--seconds` a row, as a judge behind a network does, beside the
same job whose reward waits for nothing; runs alternate. Responses end at `--tokens` or before. A figure is the median
step of a run without its first two; the difference of each pair is printed beside one reward's time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from rljob_worker.tiny.make import make_model
from rljob_worker.tiny.recipe import quick

GROUP_SIZE = 8
WARM_UP_STEPS = 2
REWARD = '''
import asyncio


async def judged(row, seconds):
    """As good as the response is long, by a judge that takes its time."""
    if seconds:
        await asyncio.sleep(seconds)
    return float(row["num_response_tokens"] % 7)
'''


def job(tiny: Path, options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    return {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "slow" if seconds else "fast"},
        "spec": {
            "models": [{"name": "actor", "path": str(tiny / "model")}],
            "data": {
                "train": [{"path": str(tiny / "train.parquet")}],
                "promptColumn": "question",
                "batchSize": options.rows // GROUP_SIZE,
                "maxPromptTokens": 64,
            },
            "rewards": [{"name": "judge", "run": "judge:judged", "options": {"seconds": seconds}}],
            "algorithm": {"name": "GRPO", "groupSize": GROUP_SIZE, "kl": {"coefficient": 0.001}},
            "workerGroups": [{"name": "train", "accelerator": {"profile": "cpu", "count": 1}}],
            "rollout": {"maxResponseTokens": options.tokens},
            "checkpoint": {"everySteps": 0},
            "stop": {"steps": options.steps},
            "dataBuffer": {"memory": "64Mi"},
        },
    }


def step_seconds(folder: Path, document: dict[str, Any]) -> float:
    """Median step of one run."""
    name = document["metadata"]["name"]
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(document))
    with tempfile.TemporaryDirectory(dir=folder) as runs:
        command = [sys.executable, "-P", "-m", "rljob_worker.cli", "run", f"{name}.yaml", "--runs-dir", runs]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        records = map(json.loads, (Path(runs) / name / "metrics.jsonl").read_text().splitlines())
        return statistics.median([record["time/step_seconds"] for record in records if record["step"] > WARM_UP_STEPS])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    grown = []
    with tempfile.TemporaryDirectory() as folder:
        tiny = Path(folder) / "tiny"
        make_model(quick(), tiny)
        (Path(folder) / "judge.py").write_text(REWARD)
        for _ in range(options.pairs):
            fast, slow = (step_seconds(Path(folder), job(tiny, options, item)) for item in (0.0, options.seconds))
            grown.append(slow - fast)
            print(f"a step takes {fast:.3f} s, with {options.seconds:g} s a reward {slow:.3f} s", flush=True)
    longer = statistics.median(grown)
    print(f"longer by {longer:.3f} s (median of {options.pairs} pairs); one reward: {options.seconds:g} s")


if __name__ == "__main__":
    main()
