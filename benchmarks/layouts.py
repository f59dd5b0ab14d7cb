"""Models in every layout: how far what they score and learn is from one rank that has it all.

    python benchmarks/layouts.py [--engine Megatron] [--model experts] [--layouts dp=2 tp=2,cp=2 ...] [--rows 16]
                                 [--longest 96] [--learning-rate 1e-4] [--write]

Tiny models (qwen3, 2 layers, 8 heads, 4 key heads; the same whose last layer is its embedding, in pipeline stages;
qwen3_moe with 4 experts, of which a token chooses 2) with the same rows everywhere. Log-probabilities in Float32, and
the weights after an update in Float32 and in Float64: the largest distance to one rank of FSDP, whichever engine the
layouts are of. With cp=3, which does not divide the key heads, keys and values go round in a ring. Ends with 1 where
anything is further than `LIMITS`. --write puts the furthest layout of each model and engine into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import docs_section
import numpy as np
import torch

from rljob_api.pipeline.meshes import Mesh
from rljob_worker.batch import Batch
from rljob_worker.engines.fsdp import FSDPEngine, TrainSettings
from rljob_worker.engines.fsdp.layers import TRANSFORMERS, Layers
from rljob_worker.engines.megatron.library import megatron_layers
from rljob_worker.engines.models import random_policy
from rljob_worker.engines.tests.builders import PolicyGradient, a_batch, mesh_here, write_config
from rljob_worker.engines.tests.ranks import run_fresh_ranks

CPU = torch.device("cpu")
ONE = ("", "dp=2")
REPLICAS = ("dp=4,rp=2", "dp=2,rp=2,tp=2", "dp=2,rp=2,cp=2")
TENSOR_PARALLEL = ("tp=2", "dp=2,tp=2", "cp=2,tp=2")
SEQUENCES = ("cp=2", "dp=2,cp=2")
STAGES = ("pp=2", "dp=2,pp=2", "cp=2,pp=2", "tp=2,pp=2")
EXPERTS = ("dp=2,ep=2", "cp=2,ep=2", "tp=2,ep=2", "dp=4,ep=4", "dp=2,cp=2,ep=2", "dp=2,tp=2,ep=2", "cp=2,tp=2,ep=4")
STAGES_OF_EXPERTS = ("pp=2", "dp=2,pp=2,ep=2", "tp=2,pp=2,ep=2", "cp=2,pp=2,ep=2")
SPREAD_REPLICAS = "dp=4,rp=2,ep=2"

LAYOUTS: dict[tuple[str, str], tuple[str, ...]] = {
    ("dense", "FSDP"): (*ONE, "dp=4", *SEQUENCES, "cp=4", "cp=3", *TENSOR_PARALLEL, "tp=4", *REPLICAS),
    ("dense", "Megatron"): (*ONE, *SEQUENCES, *TENSOR_PARALLEL, *STAGES, *REPLICAS, "dp=2,rp=2,pp=2"),
    ("tied", "Megatron"): STAGES,
    ("experts", "FSDP"): (*ONE, *EXPERTS, SPREAD_REPLICAS),
    ("experts", "Megatron"): (*ONE, *EXPERTS, SPREAD_REPLICAS, *STAGES_OF_EXPERTS),
}
"""By model and engine."""

MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "dense": ("qwen3", "qwen3", {}),
    "tied": ("qwen3, tied", "qwen3", {"tie_word_embeddings": True}),
    "experts": ("qwen3_moe", "qwen3_moe", {"num_experts": 4}),
}
"""What the table calls them, their families, and what else their configs have."""
LAYERS: dict[str, Callable[[], Layers]] = {"FSDP": lambda: TRANSFORMERS, "Megatron": partial(megatron_layers, CPU)}
AXES = {"dp": "data", "rp": "replicas", "pp": "pipeline", "cp": "context", "tp": "tensor", "ep": "expert"}
LIMITS = (1e-5, 1e-5, 1e-12)
"""Of log-probabilities, and of weights in Float32 and Float64. Adam's first step is g / (|g| + 1e-8) of the learning
rate: of a gradient as small as what Float32 leaves of larger ones it can be any part of that."""
FIGURES = ("log-probs", "weights, Float32", "weights, Float64")


@dataclass(frozen=True, slots=True)
class LayoutCase:
    """What all ranks of all layouts are given."""

    path: str
    rows: Batch
    learning_rate: float

    def engine(self, mesh: Mesh, precision: str, engine: str) -> FSDPEngine:
        settings = TrainSettings(learning_rate=self.learning_rate, tokens_per_micro_batch=256, precision=precision)
        model = random_policy(self.path, settings.master_dtype, 0)
        return FSDPEngine(model, settings, CPU, mesh_here(mesh), layers=LAYERS[engine]())

    def own(self, rank: int, mesh: Mesh) -> Batch:
        """Rows of the copy that a rank belongs to."""
        return self.rows.take(np.array_split(np.arange(len(self.rows)), mesh.dp)[mesh.dp_rank(rank)])


Found = tuple[np.ndarray, dict[str, torch.Tensor], dict[str, torch.Tensor]]
"""By one rank: log-probabilities of its rows, weights after an update in Float32 and in Float64."""


def measure(rank: int, case: LayoutCase, mesh: Mesh, engine: str) -> Found:
    rows = case.own(rank, mesh)
    log_probs = case.engine(mesh, "Float32", engine).log_probs(rows).values
    single, double = (updated(case.engine(mesh, precision, engine), rows) for precision in ("Float32", "Float64"))
    return log_probs, single, double


def updated(engine: FSDPEngine, rows: Batch) -> dict[str, torch.Tensor]:
    engine.update(rows, PolicyGradient())
    return {name: tensor.clone() for name, tensor in engine.weights(dtype=engine.settings.master_dtype)}


def distances(mesh: Mesh, ranks: list[Found], one: Found) -> tuple[float, float, float]:
    """Largest distances to one rank: of rows on their leaders, and of weights on every rank, in each precision."""
    leaders = [result for rank, result in enumerate(ranks) if mesh.is_row_leader(rank)]
    scores = float(np.abs(np.concatenate([leader[0] for leader in leaders]) - one[0]).max())
    single, double = (max(furthest(rank[i], one[i]) for rank in ranks) for i in (1, 2))
    return scores, single, double


def furthest(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
    assert left.keys() == right.keys()
    return max(float((left[name] - right[name]).abs().max()) for name in left)


def mesh_of(layout: str) -> Mesh:
    return Mesh(**{axis: int(size) for axis, _, size in (word.partition("=") for word in layout.split(",") if word)})


def in_words(layout: str) -> str:
    sizes = (word.partition("=") for word in layout.split(",") if word)
    return ", ".join(f"{AXES[axis]} {size}" for axis, _, size in sizes) or "one rank"


Figures = tuple[float, float, float]
"""Largest distances of log-probabilities, and of weights in Float32 and Float64."""
Line = tuple[str, str, str, Figures]
"""Model, engine, layout, what was found."""


def measured(options: argparse.Namespace, folder: Path) -> Iterator[Line]:
    """Layout by layout."""
    lengths = np.random.default_rng(0).integers(1, options.longest + 1, options.rows).tolist()
    for model in options.model:
        case = LayoutCase(model_path(model, folder), a_batch(lengths), options.learning_rate)
        (one,) = run_fresh_ranks(1, measure, folder / f"{model} alone", case, Mesh(), "FSDP")
        for engine in options.engine:
            for layout in options.layouts or LAYOUTS.get((model, engine), ()):
                mesh, place = mesh_of(layout), folder / f"{model} {engine} {layout}"
                result = distances(mesh, run_fresh_ranks(mesh.size, measure, place, case, mesh, engine), one)
                yield MODELS[model][0], engine, in_words(layout), result


def head(column: str) -> tuple[str, str]:
    return "| " + " | ".join(("model", "engine", column, *FIGURES)) + " |", "|---|---|---|--:|--:|--:|"


def row(line: Line) -> str:
    *names, result = line
    return f"| {' | '.join([*names, *(f'{item:.1e}'.replace('e-0', 'e-') if item else '0' for item in result)])} |"


def summary(lines: Sequence[Line]) -> list[str]:
    """The furthest layout of each model and engine, a row each."""
    rows = []
    for key in dict.fromkeys(line[:2] for line in lines):
        mine = [line for line in lines if line[:2] == key]
        rows.append(row((*key, "; ".join(line[2] for line in mine), furthest_of(mine))))
    return [*head("layouts"), *rows]


def furthest_of(lines: Sequence[Line]) -> Figures:
    scores, single, double = (max(line[3][i] for line in lines) for i in range(3))
    return scores, single, double


def model_path(model: str, folder: Path) -> str:
    _, family, more = MODELS[model]
    return write_config(folder / model, family, num_attention_heads=8, num_key_value_heads=4, **more)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", nargs="+", choices=sorted(LAYERS), default=sorted(LAYERS))
    parser.add_argument("--model", nargs="+", choices=sorted(MODELS), default=sorted(MODELS))
    parser.add_argument("--layouts", nargs="+")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--longest", type=int, default=96)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    print(*head("layout"), sep="\n")
    lines = list[Line]()
    with tempfile.TemporaryDirectory() as name:
        for line in measured(options, Path(name)):
            print(row(line), flush=True)
            lines.append(line)
    if options.write:
        docs_section.write("layouts", summary(lines))
    most = furthest_of(lines)
    print("at most " + ", ".join(f"{item:.1e} of {limit:.0e}" for item, limit in zip(most, LIMITS, strict=True)))
    return int(any(item > limit for item, limit in zip(most, LIMITS, strict=True)))


if __name__ == "__main__":
    sys.exit(main())
