"""Steps per second with generation ahead of training, trainers beside a stopped generator, memory over many steps, and
responses with a long tail of lengths.

    python benchmarks/async.py [speed] [stopped] [memory] [tail] [--steps 64] [--pairs 3] [--seconds 2] [--seeds 3]

All but `tail`: two pods, one generates and one trains, with rows and weights of the tiny model. What takes long in both
is a stage that waits, so that the cores of this machine are not shared by what has a machine of its own elsewhere.

speed     generation and update wait equally long, a checkpoint every 10 steps; maxStaleness 0 and 1 in turn. A pair's
          ratio is the steps per second of the latter over those of the former, between the fifth update and the last
stopped   updates wait, generation does not; the processes of the generating pod are stopped for 5 s. Seconds that the
          trainer spends on each step but for waiting for rows, before, meanwhile and after
memory    nothing waits; private memory of all processes of a run after 100 steps and at the end
tail      the stage that generates, on an engine whose time is virtual: 64 slots, a decode step that costs a + b x rows
          with b x 64 = a / 4, log-normal lengths of up to 16 x the median. Tokens of the batches per unit of time, idle
          slots, and whether long groups are trained on: `rollout.partial` (Carry) beside waiting for every row (Wait)
          and beside beginning twice the groups and dropping what is late (Discard)
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from long_tail.table import print_table
from process_usage import descendants, parents, process_file
from started_run import StartedRun

WAITS = """
import json, os, time
from pathlib import Path

def wait(batch, context, name):
    with Path(__file__).with_name(f"{name}.jsonl").open("a") as file:
        file.write(json.dumps([context.step, time.time(), os.getpid()]) + "\\n")
    time.sleep(json.loads(Path(__file__).with_name("seconds.json").read_text())[name])
    return {name: [0.0] * len(batch)}

def generation(batch, context):
    return wait(batch, context, "generation")

def update(batch, context):
    return wait(batch, context, "update")
"""
CPU = {"profile": "cpu", "count": 1}


def job(tiny: Path, staleness: int, steps: int) -> dict[str, Any]:
    """Four prompts, four responses each; a checkpoint every ten steps."""
    wait = {"after": ["rollout"], "reads": ["response_ids"]}
    stages = [
        {"name": "rollout", "run": "Rollout", "models": ["actor"], "group": "rollout"},
        {"name": "slow_rollout", "run": "waits:generation", **wait, "writes": ["generation"], "group": "rollout"},
        {"name": "reward", "run": "Reward", "after": ["slow_rollout"], "group": "rollout"},
        {"name": "advantage", "run": "Advantage", "after": ["reward"], "group": "train"},
        {"name": "slow_update", "run": "waits:update", "after": ["advantage"], "reads": ["advantages"],
         "writes": ["update"], "group": "train"},
        {"name": "update", "run": "UpdatePolicy", "models": ["actor"], "after": ["slow_update"], "group": "train"},
    ]  # fmt: skip
    spec = {
        "models": [{"name": "actor", "path": str(tiny / "model")}],
        "data": {
            "train": [{"path": str(tiny / "train.parquet")}],
            "promptColumn": "question",
            "batchSize": 4,
            "maxPromptTokens": 64,
        },
        "rewards": [{"name": "correct", "run": "rljob_worker.rewards:final_number", "column": "answer"}],
        "algorithm": {"name": "GRPO", "groupSize": 4, "kl": {"coefficient": 0.0}},
        "workerGroups": [{"name": "rollout", "accelerator": CPU}, {"name": "train", "accelerator": CPU}],
        "training": {"learningRate": 1.0e-4, "precision": "Float32"},
        "rollout": {"maxResponseTokens": 20, "maxStaleness": staleness},
        "checkpoint": {"everySteps": 10},
        "stop": {"steps": steps},
        "dataBuffer": {"memory": "1Gi", "deadlineSeconds": 120},
        "dag": {"stages": stages},
    }
    return {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "async"}, "spec": spec}


def start(folder: Path, tiny: Path, staleness: int, steps: int, seconds: dict[str, float]) -> StartedRun:
    return StartedRun(folder, job(tiny, staleness, steps), WAITS, seconds, "update.jsonl")


def generators(run: StartedRun) -> list[int]:
    """The processes of the pod that generates: worker, reward processes, launcher, data buffer."""
    worker = json.loads((run.folder / "generation.jsonl").read_text().splitlines()[0])[2]
    launcher = parents()[worker]
    # who is forked from a preloaded process shows that process's environment; data buffers are not
    buffers = [pid for pid in run.processes() if b"rljob_worker.databuffer" in process_file(pid, "cmdline")]
    own = [pid for pid in buffers if b"RLJOB_GROUP=rollout" in process_file(pid, "environ").split(b"\0")]
    return [launcher, *descendants(launcher), *own]


def speed(options: argparse.Namespace, tiny: Path) -> None:
    seconds = {"generation": options.seconds, "update": options.seconds}
    ratios = []
    for pair in range(options.pairs):
        rates = []
        for staleness in (0, 1):
            run = start(options.out / f"speed-{pair}-{staleness}", tiny, staleness, options.steps, seconds)
            run.finish()
            updates = run.updates()
            rates.append((options.steps - 5) / (updates[options.steps] - updates[5]))
        ratios.append(rates[1] / rates[0])
        print(f"pair {pair + 1}: {rates[0]:.4f} and {rates[1]:.4f} steps/s, ratio {ratios[-1]:.3f}", flush=True)
    spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
    print(f"speed: median ratio {statistics.median(ratios):.3f} ({spread}); held to 1.9")


def stopped(options: argparse.Namespace, tiny: Path) -> None:
    run = start(options.out / "stopped", tiny, 2, 30, {"generation": 0.0, "update": options.seconds})
    run.wait_for_step(12)
    stopped_pids = generators(run)
    for pid in stopped_pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(5.0)
    for pid in stopped_pids:
        os.kill(pid, signal.SIGCONT)
    run.finish()
    updates = run.updates()
    seconds = {step: updates[step + 1] - updates[step] for step in range(5, 29)}
    print(f"stopped for 5 s from step 12 on ({len(stopped_pids)} processes); seconds from update to update:")
    print("  " + " ".join(f"{step}:{value:.2f}" for step, value in seconds.items()))
    sends = [step.get("time/weight_sync_seconds", 0.0) for step in run.metrics()]
    print("  weight sync, mean of both groups: " + " ".join(f"{value:.3f}" for value in sends[5:29]))


def memory(options: argparse.Namespace, tiny: Path) -> None:
    run = start(options.out / "memory", tiny, 2, 500, {"generation": 0.0, "update": 0.0})
    for step in (100, 200, 300, 400, 495):
        run.wait_for_step(step)
        print(f"step {step}: {run.private_bytes() / 2**20:.1f} MiB private in all processes", flush=True)
    run.finish()


def tail(options: argparse.Namespace, tiny: Path) -> None:
    print_table(options.seeds)


PARTS = {"speed": speed, "stopped": stopped, "memory": memory, "tail": tail}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=list(PARTS))
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="that a slow stage waits")
    parser.add_argument("--seeds", type=int, default=3, help="of lengths, in tail")
    parser.add_argument("--out", type=Path, default=Path("runs/async"))
    options = parser.parse_args()
    options.out = (options.out / time.strftime("%H%M%S")).resolve()
    tiny = options.out / "tiny"
    parts = options.parts or list(PARTS)
    if parts != ["tail"]:
        make_tiny = [sys.executable, "-m", "rljob_worker.tiny", "--out", str(tiny)]
        subprocess.run(make_tiny, check=True, stdout=subprocess.DEVNULL)
    for part in parts:
        PARTS[part](options, tiny)


if __name__ == "__main__":
    main()
