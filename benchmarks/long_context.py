"""Memory of a worker by the length of one row, where 1, 2 or 4 of them share it.

    python benchmarks/long_context.py [--tokens 2048 4096 8192] [--context 1 2 4] [--key-heads 4 1] [--plan] [--write]

Measured: the peak of an update of one row of so many tokens beyond what there was before it, private memory in MiB of
the rank that has most (`private_memory`); a qwen3 of 4 layers, hidden 512, 8 heads, vocabulary 8,192. With 4 key heads
ranks share heads in attention; with 1 keys and values go round them in a ring.
--plan: the Plan's formula for Qwen3-8B, of 8 key heads, in BFloat16 with recomputation on 64 devices, up to a row of
2^20 tokens: GiB. --write puts the tables into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import docs_section
import numpy as np
import torch
from private_memory import MIB, give_back_what_is_freed, watched
from sized_models import write_model

from rljob_api.memory.layout import Layout
from rljob_api.memory.model_shape import parse_shape
from rljob_api.memory.tests.test_model_shape import QWEN3_8B
from rljob_api.memory.training import update_of
from rljob_api.pipeline.meshes import Mesh, context_way
from rljob_worker.batch import Batch, Column
from rljob_worker.engines.fsdp import FSDPEngine, TrainSettings
from rljob_worker.engines.models import WeightFiles, empty_policy
from rljob_worker.engines.tests.builders import PolicyGradient, mesh_here
from rljob_worker.engines.tests.ranks import run_fresh_ranks

CPU = torch.device("cpu")
GIB = 1 << 30


def measure(_rank: int, path: str, mesh: Mesh, tokens: int) -> float:
    give_back_what_is_freed()
    settings = TrainSettings(tokens_per_micro_batch=tokens)
    ranks = mesh_here(mesh)
    engine = FSDPEngine(empty_policy(path, torch.float32), settings, CPU, ranks, WeightFiles.find(path))
    engine.update(a_row(64), PolicyGradient())  # what libraries take at their first use is not the row's
    with watched() as peak:
        engine.update(a_row(tokens), PolicyGradient())
    return peak.beyond / MIB


def a_row(tokens: int) -> Batch:
    rng, prompt = np.random.default_rng(0), tokens // 4
    columns = {
        "prompt_ids": Column.ragged([rng.integers(2, 8000, prompt)]),
        "response_ids": Column.ragged([rng.integers(2, 8000, tokens - prompt)]),
        "advantages": Column.from_lengths(np.ones(tokens - prompt), [tokens - prompt]),
        "weight": Column.fixed(np.ones(1)),
    }
    return Batch.build(np.arange(1), np.arange(1), columns, np.array([tokens]))


def measured(tokens: list[int], contexts: list[int], key_heads: int) -> Iterator[str]:
    yield from head(contexts, key_heads)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run_fresh_ranks(1, write_model, folder / "writing", 512, 4, 8192, folder / "model", key_heads)
        for length in tokens:
            ranks = (
                run_fresh_ranks(c, measure, folder / f"{length} {c}", str(folder / "model"), Mesh(cp=c), length)
                for c in contexts
            )
            yield row(length, [f"{max(found):.0f}" for found in ranks])


def planned(contexts: tuple[int, ...] = (1, 2, 4, 8, 16, 32), devices: int = 64) -> Iterator[str]:
    shape = parse_shape(QWEN3_8B)
    assert shape is not None
    layouts = {c: Layout(shape, devices, 4, 2, on_cpu=False, ring=way(c, shape.key_heads) == "Ring") for c in contexts}
    kept = 3 * layouts[1].shard + layouts[1].gathered
    yield from head(contexts, shape.key_heads)
    for power in range(15, 21):
        tokens = {c: 2**power // c for c in contexts}
        peaks = (update_of(layouts[c], tokens[c], tokens[c], 2, recompute=True).peak + kept for c in contexts)
        yield row(2**power, [f"{peak / GIB:.1f}" for peak in peaks])


def way(context: int, key_heads: int) -> str:
    return context_way(key_heads, Mesh(cp=context))


def head(contexts: Sequence[int], key_heads: int) -> Iterator[str]:
    rings = {c: ", ring" if way(c, key_heads) == "Ring" else "" for c in contexts}
    yield "| tokens | " + " | ".join(f"context {c}{ring}" for c, ring in rings.items()) + " |"
    yield "|" + "--:|" * (1 + len(contexts))


def row(tokens: int, cells: list[str]) -> str:
    return f"| {tokens:,} | {' | '.join(cells)} |"


def show(section: str, lines: Iterator[str], *, write: bool) -> None:
    kept = []
    print(section)
    for line in lines:
        print(line, flush=True)
        kept.append(line)
    if write:
        docs_section.write(section, kept)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[2048, 4096, 8192])
    parser.add_argument("--context", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--key-heads", type=int, nargs="+", default=[4, 1])
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.plan:
        show("long context, planned", planned(), write=options.write)
        return
    for key_heads in options.key_heads:
        lines = measured(options.tokens, options.context, key_heads)
        show(f"long context, {key_heads} key heads", lines, write=options.write)


if __name__ == "__main__":
    main()
