"""SRPO against success alone on examples/reach-pictures.yaml, with three seeds, and what its rewards of failures say.

    python benchmarks/reach.py [--seeds 0 1 2] [--steps 40]

Prints success before and after with either, and for each ten steps Spearman's correlation of failures' rewards by video
with minus the distance from their target at their end, with its standard error. Rewards rank the failures of a task in
a step, so the correlation is of those, and on average over tasks and steps: n failures count n - 1 times, as chance
alone spreads their correlation by 1 / (n - 1). Exits with 1 where it is below 0.8 in the last ten steps on
average over the seeds, whose standard errors are 0.05 each, or where, with any seed, success with SRPO rises by less
than 0.4, ends below 0.55, or is lower than with success alone by more than 0.08.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import yaml

HERE = Path(__file__).parent
EXAMPLES = HERE.parent / "examples"
WINDOW_STEPS = 10
STAGES: list[dict[str, Any]] = [
    {"name": "rollout", "run": "Rollout"},
    {"name": "reward", "run": "Reward", "after": ["rollout"]},
    {"name": "progress", "run": "ProgressReward", "after": ["rollout"]},
    {
        "name": "note",
        "run": "reach_notes:note",
        "after": ["progress"],
        "reads": ["task_id", "success", "progress_rewards", "environment_reward"],
        "writes": ["noted"],
    },
    {
        "name": "advantage",
        "run": "Advantage",
        "after": ["reward", "note"],
        "rename": {"rewards": "progress_rewards"},
    },
    {"name": "update", "run": "UpdatePolicy", "after": ["advantage"], "balance": "Tokens"},
]


def job_of(model: Path, seed: int, algorithm: str, steps: int) -> dict[str, Any]:
    """The example, with this seed and algorithm; with SRPO it also writes down rewards and distances."""
    job: dict[str, Any] = yaml.safe_load((EXAMPLES / "reach-pictures.yaml").read_text())
    spec, name = job["spec"], f"reach-{algorithm.lower()}-{seed}"
    job["metadata"]["name"] = name
    spec |= {"seed": seed, "stop": {"steps": steps}}
    spec["models"][0]["path"] = str(model)
    spec["algorithm"]["name"] = algorithm
    if algorithm == "SRPO":
        spec["rollout"]["simulator"]["reward"] = "Environment"
        spec["dag"] = {"stages": STAGES}
    else:
        del spec["rollout"]["simulator"]["video"]
        spec["algorithm"]["kl"] = {"coefficient": 0}
    return job


def success(run_dir: Path) -> tuple[float, float]:
    """Of the first and the last validation."""
    steps = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    shares = [step["validation/success"] for step in steps if "validation/success" in step]
    return shares[0], shares[-1]


def rank_correlations(run_dir: Path) -> list[tuple[float, float]]:
    """Spearman's in each ten steps, and its standard error."""
    failures = defaultdict[tuple[int, int], list[tuple[float, float]]](list)
    for file in run_dir.glob("failures-*.jsonl"):
        for step, task, reward, nearness in map(json.loads, file.read_text().splitlines()):
            failures[step, task].append((reward, nearness))
    windows = defaultdict[int, list[np.ndarray]](list)
    for (step, _), rows in sorted(failures.items()):
        # what is rewarded alike, as without a success, or ends equally far away has no order
        if np.ptp(rows, axis=0).all():
            windows[(step - 1) // WINDOW_STEPS].append(np.array(rows))
    return [rank_correlation(groups) for groups in windows.values()]


def rank_correlation(groups: list[np.ndarray]) -> tuple[float, float]:
    """Spearman's on average over groups [failures, 2], by what each of them tells, and its standard error."""
    weights = [len(rows) - 1 for rows in groups]
    correlations = [np.corrcoef([ranks(column) for column in rows.T])[0, 1] for rows in groups]
    return float(np.average(correlations, weights=weights)), sum(weights) ** -0.5


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks of numbers [n]; equal ones share theirs."""
    _, number, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[number]


def run(arguments: list[str], log: Path) -> None:
    with log.open("a") as file:
        subprocess.run([sys.executable, "-m", *arguments], check=True, stdout=file, stderr=file)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/reach"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    out, log = options.out.resolve(), options.out.resolve() / "reach.log"
    out.mkdir(parents=True, exist_ok=True)
    for module in (EXAMPLES / "reach_pictures.py", HERE / "reach_notes.py"):
        shutil.copy(module, out)
    reached, ranked, ends = True, list[float](), defaultdict[str, list[float]](list)
    for seed in options.seeds:
        made = out / f"model-{seed}"
        if not made.exists():
            run(["rljob_worker.tiny", "--reach-pictures", "--seed", str(seed), "--out", str(made)], log)
        for algorithm in ("SRPO", "GRPO"):
            job = job_of(made / "model", seed, algorithm, options.steps)
            name = job["metadata"]["name"]
            (out / f"{name}.yaml").write_text(yaml.safe_dump(job))
            run(["rljob_worker.cli", "run", str(out / f"{name}.yaml"), "--runs-dir", str(out)], log)
            before, after = success(out / name)
            ends[algorithm].append(after)
            figure = ""
            if algorithm == "SRPO":
                correlations = rank_correlations(out / name)
                reached &= after - before >= 0.4 and after >= 0.55
                ranked.append(correlations[-1][0])
                figure = ", Spearman " + ", ".join(f"{value:.3f} ± {error:.3f}" for value, error in correlations)
            print(f"seed {seed}, {algorithm}: success {before:.3f} to {after:.3f}{figure}", flush=True)
    differences = np.subtract(ends["SRPO"], ends["GRPO"])
    print("SRPO minus success alone: " + ", ".join(f"{value:+.3f}" for value in differences))
    print(f"Spearman in the last {WINDOW_STEPS} steps, over the seeds: {np.mean(ranked):.3f}")
    return 0 if reached and np.mean(ranked) >= 0.8 and differences.min() >= -0.08 else 1


if __name__ == "__main__":
    sys.exit(main())
