"""How long an update takes with Megatron's layers against transformers' own, on the same ranks.

    python benchmarks/layout_times.py [--updates 31] [--rows 16] [--longest 96] [--write]

The models of `layouts.py`. The ranks of a layout have both engines and update them in turn, so that whatever else the
machine does happens to both; of every pair of updates the ratio, of which the median and the quartiles are told, beside
the median seconds of the slowest rank. Pipeline stages, which FSDP has not, are held against data parallelism over as
many ranks. All ranks share the cores of this machine: what is compared are overheads, and not what a layout gains.
--write puts the table into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles

import docs_section
import numpy as np
from layouts import MODELS, Case, in_words, mesh_of, model_path

from rljob_api.pipeline.meshes import Mesh
from rljob_worker.engines.tests.builders import PolicyGradient, a_batch
from rljob_worker.engines.tests.ranks import run_fresh_ranks

PAIRS = {
    "dense": (("", ""), ("dp=2", "dp=2"), ("cp=2", "cp=2"), ("tp=2", "tp=2"), ("dp=2", "pp=2")),
    "experts": (("", ""), ("dp=2", "dp=2"), ("dp=2,ep=2", "dp=2,ep=2")),
}
"""By model, layouts of FSDP and of Megatron over as many ranks."""
HEAD = (
    "| model | FSDP | Megatron | FSDP, s | Megatron, s | Megatron / FSDP, quartiles |",
    "|---|---|---|--:|--:|--:|",
)


def measure(rank: int, case: Case, meshes: tuple[Mesh, Mesh], updates: int) -> list[tuple[float, float]]:
    """Seconds of updates, in pairs; the first of each, which makes what later ones find, is left out."""
    engines = [case.engine(mesh, "Float32", name) for mesh, name in zip(meshes, ("FSDP", "Megatron"), strict=True)]
    rows = [case.own(rank, mesh) for mesh in meshes]
    pairs = []
    for _ in range(updates + 1):
        seconds = []
        for engine, own in zip(engines, rows, strict=True):
            start = time.perf_counter()
            engine.update(own, PolicyGradient())
            seconds.append(time.perf_counter() - start)
        pairs.append((seconds[0], seconds[1]))
    return pairs[1:]


def line(model: str, layouts: tuple[str, str], ranks: list[list[tuple[float, float]]]) -> str:
    slowest = [(max(each[0] for each in pairs), max(each[1] for each in pairs)) for pairs in zip(*ranks, strict=True)]
    ratios = quantiles((megatron / fsdp for fsdp, megatron in slowest), n=4)
    fsdp, megatron = (median(each[i] for each in slowest) for i in (0, 1))
    words = " | ".join(map(in_words, layouts))
    told = f"{ratios[1]:.2f} ({ratios[0]:.2f} to {ratios[2]:.2f})"
    return f"| {MODELS[model][0]} | {words} | {fsdp:.3f} | {megatron:.3f} | {told} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=31)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--longest", type=int, default=96)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    lengths = np.random.default_rng(0).integers(1, options.longest + 1, options.rows).tolist()
    lines = list(HEAD)
    print(*HEAD, sep="\n")
    with tempfile.TemporaryDirectory() as name:
        for model, pairs in PAIRS.items():
            case = Case(model_path(model, Path(name)), a_batch(lengths), 1e-4)
            for layouts in pairs:
                meshes = mesh_of(layouts[0]), mesh_of(layouts[1])
                place = Path(name) / f"{model} {layouts}"
                ranks = run_fresh_ranks(meshes[0].size, measure, place, case, meshes, options.updates)
                lines.append(line(model, layouts, ranks))
                print(lines[-1], flush=True)
    if options.write:
        docs_section.write("layout times", lines)


if __name__ == "__main__":
    main()
