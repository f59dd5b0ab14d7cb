"""How much of the weights changes in a step: what `weightSync.delta` would send of them.

    make quickstart                  # makes the tiny model and its problems
    python benchmarks/weight_changes.py [--example arithmetic-grpo] [--steps 10] [--learning-rates 1e-4 1e-6]

Runs the example with a checkpoint of every step and compares each with the one before, bit by bit: in Float32, as it
trains, and in BFloat16, as a job in mixed precision would send it. `sent` is places and values, or the whole tensor
where that is less, as a share of the whole weights; medians over the steps, and in brackets the most.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import torch
from safetensors.torch import load_file

from rljob_worker.weights.delta import changed_places

EXAMPLES = Path(__file__).parents[1] / "examples"
DTYPES = (torch.float32, torch.bfloat16)

Weights = dict[str, torch.Tensor]


def weights_by_step(example: str, steps: int, learning_rate: float, runs: Path) -> Iterator[Weights]:
    """After each step, in Float32."""
    overrides = {
        "training.learningRate": learning_rate,
        "checkpoint": f"{{everySteps: 1, keepLast: {steps}}}",
        "stop.steps": steps,
        "validation.everySteps": 0,
    }
    arguments = [part for key, value in overrides.items() for part in ("--set", f"{key}={value}")]
    rljob("run", str(EXAMPLES / f"{example}.yaml"), "--runs-dir", str(runs), *arguments)
    for step in range(1, steps + 1):
        out = runs / f"step-{step}"
        rljob("export", example, str(out), "--step", str(step), "--runs-dir", str(runs))
        yield {name: tensor for file in out.glob("*.safetensors") for name, tensor in load_file(file).items()}


def rljob(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "rljob_worker.cli", *arguments], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"rljob {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def shares(before: Weights, after: Weights, dtype: torch.dtype) -> tuple[float, float]:
    """Of all values those that changed, and of all bytes those that are sent."""
    num_values = num_changed = num_sent = num_bytes = 0
    for name, tensor in after.items():
        last, now = before[name].to(dtype), tensor.to(dtype)
        places = changed_places(last, now)
        num_values, num_changed = num_values + now.numel(), num_changed + len(places)
        changes = places.nbytes + len(places) * now.element_size()
        num_bytes, num_sent = num_bytes + now.nbytes, num_sent + min(changes, now.nbytes)
    return num_changed / num_values, num_sent / num_bytes


def show(found: list[float]) -> str:
    return f"{statistics.median(found):>9.1%} ({max(found):.1%})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--example", default="arithmetic-grpo", help="the name of one that trains in Float32")
    parser.add_argument("--steps", type=int, default=10, help="at least 2")
    parser.add_argument("--learning-rates", type=float, nargs="+", default=[1e-4, 1e-6])
    options = parser.parse_args()
    print(f"{'learning rate':<15}{'precision':<12}{'changed':>18}{'sent':>18}")
    for rate in options.learning_rates:
        with tempfile.TemporaryDirectory() as runs:
            steps = list(weights_by_step(options.example, options.steps, rate, Path(runs)))
        for dtype in DTYPES:
            changed, sent = zip(*(shares(*pair, dtype) for pair in pairwise(steps)), strict=True)
            precision = str(dtype).removeprefix("torch.")
            print(f"{rate:<15g}{precision:<12}{show(list(changed)):>18}{show(list(sent)):>18}", flush=True)


if __name__ == "__main__":
    main()
