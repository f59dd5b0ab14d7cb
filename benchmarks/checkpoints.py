"""How long a step waits for its checkpoint: written before the next step, and beside it.

    python benchmarks/checkpoints.py [--sizes 64x2 1024x12] [--rounds 5] [--directory DIR]

One rank of a model of n hidden units and layers (1024x12 has 220 million parameters), with AdamW, in Float32.
Every round saves twice, in turn: `before` copies and writes; `beside` only copies, and an update runs while the copy is
written. Medians, in seconds: what the step waited each way, the update alone, the update beside the writing, and what
was still to be written after it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from rljob_worker.checkpoint.background import Background
from rljob_worker.checkpoint.restore import discard_after
from rljob_worker.checkpoint.writer import RankFiles, RankPart
from rljob_worker.engines.fsdp import FSDPEngine, TrainSettings
from rljob_worker.engines.models import random_policy
from rljob_worker.engines.tests.builders import PolicyGradient, a_batch, write_config
from rljob_worker.rundir.ownership import Owner

COLUMNS = ("parameters", "before", "beside", "update", "update beside", "left to write")


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def build(size: str, folder: Path) -> FSDPEngine:
    hidden, layers = map(int, size.split("x"))
    path = write_config(
        folder / size,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=hidden // 64,
        head_dim=32,
        vocab_size=64 * hidden,
    )
    return FSDPEngine(random_policy(path, torch.float32, 0), TrainSettings(), torch.device("cpu"))


def measure(engine: FSDPEngine, files: RankFiles, rounds: int) -> list[list[float]]:
    """By round: the columns after the first."""
    update = partial(engine.update, a_batch([24] * 8), PolicyGradient())
    update()
    writing, result = Background("checkpoint"), []
    for number in range(rounds):
        before = seconds(lambda step=number: files.write(2 * step, RankPart.copy({"train/actor": engine}, {})))
        alone = seconds(update)
        parts: list[RankPart] = []
        beside = seconds(lambda into=parts: into.append(RankPart.copy({"train/actor": engine}, {})))
        writing.start(partial(files.write, 2 * number + 1, parts.pop()))
        result.append([before, beside, alone, seconds(update), seconds(writing.wait)])
        discard_after(files.run_dir / "checkpoints", 0)  # none was committed
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["64x2", "1024x12"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, help="on the disk that is measured")
    options = parser.parse_args()
    print("| size | " + " | ".join(COLUMNS) + " |")
    print("|---" * (len(COLUMNS) + 1) + "|")
    for size in options.sizes:
        with tempfile.TemporaryDirectory(dir=options.directory) as folder:
            engine = build(size, Path(folder))
            millions = sum(parameter.numel() for parameter in engine.model.parameters()) / 1e6
            rounds = measure(engine, RankFiles(Path(folder) / "run", Owner(1), "train", 0), options.rounds)
        medians = [statistics.median(column) for column in zip(*rounds, strict=True)]
        print(f"| {size} | {millions:.1f} M | " + " | ".join(f"{one:.3f}" for one in medians) + " |", flush=True)


if __name__ == "__main__":
    main()
