"""One model in every layout: how far what it scores and learns is from one rank that has it all, and what a step takes.

    python benchmarks/layouts.py [--experts] [--engine Megatron] [--layouts dp=2 tp=2,cp=2 ...] [--rows 16]
                                 [--longest 96] [--repeats 5]

A tiny model (qwen3, 2 layers, 8 heads, 4 key heads; with --experts qwen3_moe, 4 experts) with the same rows everywhere.
Log-probabilities in Float32, and the weights after an update in Float32 and in Float64: the largest distance to one
rank. With cp=3, which does not divide the key heads, keys and values go round in a ring. Seconds are the median of the
updates on this machine, whose ranks share its cores: overheads, and not what a layout gains. The one rank is FSDP's,
whichever engine the layouts are of.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from rljob_api.pipeline.meshes import Mesh
from rljob_worker.batch import Batch
from rljob_worker.engines.fsdp import FSDPEngine, TrainSettings
from rljob_worker.engines.fsdp.layers import TRANSFORMERS, Layers
from rljob_worker.engines.megatron.library import megatron_layers
from rljob_worker.engines.models import random_policy
from rljob_worker.engines.tests.builders import PolicyGradient, a_batch, mesh_here, run_ranks, write_config

CPU = torch.device("cpu")
LAYOUTS = ("", "dp=2", "dp=4", "cp=2", "cp=4", "cp=3", "tp=2", "tp=4", "dp=2,cp=2", "dp=2,tp=2", "cp=2,tp=2")
OF_MEGATRON = (
    *LAYOUTS[:1],
    "dp=2",
    "tp=2",
    "cp=2",
    "pp=2",
    "dp=2,tp=2",
    "dp=2,pp=2",
    "cp=2,tp=2",
    "cp=2,pp=2",
    "tp=2,pp=2",
)
WITH_EXPERTS = (
    "",
    "dp=2",
    "dp=2,ep=2",
    "cp=2,ep=2",
    "tp=2,ep=2",
    "dp=4,ep=2",
    "dp=4,ep=4",
    "dp=2,tp=2,ep=2",
    "cp=2,tp=2,ep=4",
)
SETTINGS = TrainSettings(learning_rate=1e-3, tokens_per_micro_batch=256)

LAYERS: dict[str, Callable[[], Layers]] = {"FSDP": lambda: TRANSFORMERS, "Megatron": partial(megatron_layers, CPU)}

Found = tuple[np.ndarray, dict[str, torch.Tensor], dict[str, torch.Tensor], float]
"""Log-probs of this rank's rows, weights after an update in Float32 and Float64, seconds of one."""


def measure(rank: int, path: str, mesh: Mesh, rows: Batch, repeats: int, engine_name: str) -> Found:
    layers = LAYERS[engine_name]()
    copy = np.array_split(np.arange(len(rows)), mesh.dp)[mesh.dp_rank(rank)]
    batch = rows.take(copy)
    engine = build(path, mesh, "Float32", layers)
    log_probs = engine.log_probs(batch).values
    engine.update(batch, PolicyGradient())
    after = weights(engine)
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        engine.update(batch, PolicyGradient())
        seconds.append(time.perf_counter() - start)
    exact = build(path, mesh, "Float64", layers)
    exact.update(batch, PolicyGradient())
    return log_probs, after, weights(exact), statistics.median(seconds)


def build(path: str, mesh: Mesh, precision: str, layers: Layers) -> FSDPEngine:
    settings = replace(SETTINGS, precision=precision)
    ranks = mesh_here(mesh)
    return FSDPEngine(random_policy(path, settings.master_dtype, 0), settings, CPU, ranks, layers=layers)


def weights(engine: FSDPEngine) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in engine.weights(dtype=engine.settings.master_dtype)}


def furthest(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
    return max(float((left[name] - right[name]).abs().max()) for name in left)


def show(layout: str, mesh: Mesh, ranks: list[Found], one: Found) -> None:
    leaders = [found for rank, found in enumerate(ranks) if mesh.is_row_leader(rank)]
    scores = np.abs(np.concatenate([found[0] for found in leaders]) - one[0]).max()
    single, double = (max(furthest(found[i], one[i]) for found in ranks) for i in (1, 2))
    seconds = max(found[3] for found in ranks)
    print(f"{layout or 'one rank':14} {scores:11.1e} {single:11.1e} {double:11.1e} {seconds:9.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experts", action="store_true")
    parser.add_argument("--engine", choices=sorted(LAYERS), default="FSDP")
    parser.add_argument("--layouts", nargs="+")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--longest", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    lengths = np.random.default_rng(0).integers(1, options.longest + 1, options.rows).tolist()
    rows = a_batch(lengths)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        family, more = ("qwen3_moe", {"num_experts": 4}) if options.experts else ("qwen3", {})
        path = write_config(folder / "model", family, num_attention_heads=8, num_key_value_heads=4, **more)
        (one,) = run_ranks(1, measure, folder / "one", path, Mesh(), rows, options.repeats, "FSDP")
        print(f"{'layout':14} {'log-probs':>11} {'Float32':>11} {'Float64':>11} {'seconds':>9}")
        usual = WITH_EXPERTS if options.experts else OF_MEGATRON if options.engine == "Megatron" else LAYOUTS
        for layout in options.layouts or usual:
            mesh = Mesh(
                **{axis: int(size) for axis, _, size in (each.partition("=") for each in layout.split(",") if each)}
            )
            told = path, mesh, rows, options.repeats, options.engine
            ranks = run_ranks(mesh.size, measure, folder / f"of {layout}", *told)
            show(layout, mesh, ranks, one)


if __name__ == "__main__":
    main()
