"""How much memory `rljob export` takes beside the size of the model, and how long.

    python benchmarks/export.py [--sizes 512x8 1024x12] [--ranks 2] [--adapter] [--directory DIR]

A run whose checkpoint so many ranks wrote, of a model of so many hidden units and layers in Float32; with --adapter of
an adapter, which is merged. The peak is private memory (`private_memory`) beyond what the process had before, in MiB.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from private_memory import MIB, give_back_what_is_freed, watched
from sized_models import write_model

from rljob_api.planning.plan import Plan
from rljob_api.tests.builders import make_plan
from rljob_worker.checkpoint.export import export_model
from rljob_worker.engines.registry import build_train_engine
from rljob_worker.engines.tests.builders import mesh_of_all, save
from rljob_worker.engines.tests.ranks import run_fresh_ranks

VOCABULARY = 32768


def plan_of(path: str, *, adapter: bool) -> Plan:
    of_model = ", adapter: {rank: 16}" if adapter else ""
    return make_plan(f"models=[{{name: actor, path: '{path}'{of_model}}}]", "training.precision=Float32")


def write(_rank: int, plan: Plan, checkpoint: Path) -> None:
    save(build_train_engine(plan, plan.actor_engine, torch.device("cpu"), mesh_of_all()), checkpoint)  # type: ignore[arg-type]


def measure(_rank: int, plan: Plan, checkpoint: Path, out: Path) -> tuple[float, float]:
    """MiB and seconds."""
    give_back_what_is_freed()
    out.mkdir()
    started = time.perf_counter()
    with watched() as peak:
        export_model(plan, plan.actor_engine, checkpoint, out)
    return peak.beyond / MIB, time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["512x8", "1024x12"])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--adapter", action="store_true")
    parser.add_argument("--directory", type=Path, help="on the disk that is measured")
    options = parser.parse_args()
    print("| parameters | weights, MiB | at most in memory, MiB | seconds |\n|--:|--:|--:|--:|")
    for size in options.sizes:
        hidden, layers = map(int, size.split("x"))
        with tempfile.TemporaryDirectory(dir=options.directory) as name:
            folder, path = Path(name), Path(name) / "model"
            (count,) = run_fresh_ranks(1, write_model, folder / "w", hidden, layers, VOCABULARY, path)
            arguments: list[Any] = [plan_of(str(path), adapter=options.adapter), folder / "checkpoint"]
            run_fresh_ranks(options.ranks, write, folder / "write", *arguments)
            ((peak, seconds),) = run_fresh_ranks(1, measure, folder / "export", *arguments, folder / "out")
        print(f"| {count / 1e6:.0f} M | {count * 4 / MIB:,.0f} | {peak:,.0f} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
