"""The plan's estimate of memory beside what a worker has, phase by phase.

    python benchmarks/memory.py [--sizes 256x4 512x8] [--ranks 1 2] [--tokens 1024] [--precision Float32]
                                [--states Int8] [--family gemma2] [--row 2048]

Each line is measured in processes of its own: private memory (`private_memory`) of the rank that has most, in MiB,
beyond what it had before the model was loaded. `load`: weights and optimizer. `train`: the peak of the second update of
four micro-batches (and of one), rows without padding, with prompts that nobody shares. gemma2 bounds its scores.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from even_rows import even_rows
from private_memory import MIB, give_back_what_is_freed, private_bytes, watched
from sized_models import FAMILIES, write_model

from rljob_api.memory.layout import Layout
from rljob_api.memory.model_shape import parse_shape
from rljob_api.memory.training import update_of
from rljob_worker.batch import Batch
from rljob_worker.engines.fsdp import FSDPEngine, TrainSettings
from rljob_worker.engines.fsdp.settings import DTYPES
from rljob_worker.engines.models import WeightFiles, empty_policy
from rljob_worker.engines.tests.builders import PolicyGradient, mesh_of_all
from rljob_worker.engines.tests.ranks import run_fresh_ranks

DEADLINE_SECONDS = 1800


@dataclass(frozen=True, slots=True)
class Case:
    """One line."""

    ranks: int
    tokens: int
    """Of a micro-batch."""
    micro_batches: int
    precision: str
    held_bytes: int
    recompute: bool
    states: str
    """Number format of the optimizer's."""
    row: int
    """Tokens of a row, of which a quarter are its prompt."""

    def settings(self) -> TrainSettings:
        return TrainSettings(
            tokens_per_micro_batch=self.tokens,
            precision=self.precision,
            held_bytes=self.held_bytes,
            activation_checkpointing=self.recompute,
            states=self.states,
        )


def measure(_rank: int, path: str, case: Case) -> tuple[float, float]:
    """MiB after loading, and at the peak of an update."""
    give_back_what_is_freed()
    settings, batch = case.settings(), rows(case)
    warm_up(path, settings)
    before = private_bytes()
    engine = FSDPEngine(
        empty_policy(path, settings.master_dtype), settings, torch.device("cpu"), mesh_of_all(), WeightFiles.find(path)
    )
    loaded = private_bytes() - before
    engine.update(batch, PolicyGradient())
    start = private_bytes() - before
    with watched() as peak:
        engine.update(batch, PolicyGradient())
    return loaded / MIB, (start + peak.beyond) / MIB


def warm_up(path: str, settings: TrainSettings) -> None:
    """What libraries take at their first use is not the model's."""
    empty_policy(path, settings.master_dtype)
    size = 2048
    left, right = (torch.randn(size, size, dtype=DTYPES[settings.precision], requires_grad=True) for _ in range(2))
    (left @ right).sum().backward()


def rows(case: Case) -> Batch:
    return even_rows(case.tokens // case.row * case.micro_batches, case.row // 4, case.row * 3 // 4, 2, 1000)


def estimate(config: dict[str, object], case: Case) -> tuple[float, float]:
    shape = parse_shape(config)
    assert shape is not None
    settings = case.settings()
    layout = Layout(
        shape,
        case.ranks,
        settings.master_dtype.itemsize,
        DTYPES[case.precision].itemsize,
        on_cpu=True,
        held_bytes=case.held_bytes,
        states=case.states,
    )
    kept = layout.shard + layout.optimizer
    update = update_of(
        layout, case.tokens, case.tokens * 3 // 4, case.micro_batches, recompute=case.recompute, longest=case.row
    )
    return kept / MIB, (kept + layout.gathered + update.peak) / MIB


def show(case: Case, path: Path, folder: Path) -> None:
    measured = run_fresh_ranks(case.ranks, measure, folder, str(path), case, deadline_seconds=DEADLINE_SECONDS)
    found = [max(each) for each in zip(*measured, strict=True)]
    expected = estimate(json.loads((path / "config.json").read_text()), case)
    cells = [f"{e:7.0f} {f:7.0f} {e / f - 1:+5.0%}" for e, f in zip(expected, found, strict=True)]
    held = "whole" if case.held_bytes else "sharded"
    recompute = "recompute" if case.recompute else "keep"
    print(
        f"{case.ranks:5} {case.precision:9} {case.tokens:6} x {case.micro_batches} {held:8} {recompute:9}  "
        f"{cells[0]}  {cells[1]}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["256x4", "512x8", "1024x16"])
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--precision", default="Float32")
    parser.add_argument("--family", choices=sorted(FAMILIES), default="qwen3")
    parser.add_argument("--row", type=int, default=256, help="tokens of a row")
    parser.add_argument("--states", choices=["Float32", "BFloat16", "Int8"], default="Float32")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        for size in options.sizes:
            hidden, layers = map(int, size.split("x"))
            folder = Path(name) / size
            (count,) = run_fresh_ranks(1, write_model, folder / "w", *_model(hidden, layers, options, folder / "model"))
            print(f"{size}: {count / 1e6:.0f} M parameters; load: estimate, measured; train: estimate, measured (MiB)")
            for i, case in enumerate(cases(options)):
                show(case, folder / "model", folder / str(i))


def _model(hidden: int, layers: int, options: argparse.Namespace, path: Path) -> tuple[object, ...]:
    return hidden, layers, options.vocabulary, path, None, options.family


def cases(options: argparse.Namespace) -> list[Case]:
    return [
        Case(ranks, options.tokens, micro_batches, options.precision, held, recompute, options.states, options.row)
        for ranks in options.ranks
        for micro_batches, held, recompute in (
            (1, 1 << 30, False),
            (4, 1 << 30, False),
            (4, 0, False),
            (4, 1 << 30, True),
        )
        if held or ranks > 1
    ]


if __name__ == "__main__":
    main()
