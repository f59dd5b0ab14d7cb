"""Means in eight bits and weights on the host, where ranks split matrices or experts: steps are those of one rank."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rljob_api.pipeline.meshes import Mesh
from rljob_worker.engines.fsdp import FSDPEngine
from rljob_worker.engines.fsdp.optimizer.states import block_of
from rljob_worker.engines.models import random_policy
from rljob_worker.engines.parallel.split import may_split_columns
from rljob_worker.engines.tests.builders import PolicyGradient, mesh_here, save, write_config
from rljob_worker.engines.tests.ranks import run_ranks
from rljob_worker.engines.tests.uneven import CPU, EXACT, assert_close, share, snapshot

WIDE = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32}
"""Rows of 128 and of 256 numbers, of which two ranks have whole blocks."""
EIGHTHS = replace(EXACT, states="Int8", tokens_per_micro_batch=30)
ON_HOST = replace(EXACT, offload_optimizer=True, offload_parameters=True, tokens_per_micro_batch=30)
SETTINGS = {"Int8": EIGHTHS, "on the host": ON_HOST, "both": replace(ON_HOST, states="Int8")}


def train(rank: int, path: str, mesh: Mesh, names: list[str], directory: Path, seed: int = 0) -> dict[str, Any]:
    """Two updates under each setting, and a checkpoint after the first; with another seed the second, from that."""
    ranks, result = mesh_here(mesh), {}
    for name in names:
        settings = SETTINGS[name]
        engine = FSDPEngine(random_policy(path, torch.float64, seed), settings, CPU, ranks)
        if seed:
            engine.load(directory / name)
        else:
            engine.update(share(0, ranks), PolicyGradient())
            save(engine, directory / name)
        engine.update(share(2, ranks), PolicyGradient())
        result[name] = snapshot(engine)
    return result


@pytest.mark.parametrize(
    ("mesh", "kind", "names"),
    [
        (Mesh(tp=2), "qwen3", list(SETTINGS)),
        pytest.param(Mesh(dp=2, ep=2), "qwen3_moe", ["both"], marks=pytest.mark.slow),
    ],
    ids=["matrices", "experts"],
)
def test_ranks_that_split_something_step_as_one_and_go_on_as_one(
    tmp_path: Path, mesh: Mesh, kind: str, names: list[str]
) -> None:
    path = write_config(tmp_path / "model", kind, **WIDE)
    one = train(0, path, Mesh(), names, tmp_path / "one")
    several = run_ranks(mesh.size, train, tmp_path / "ranks", path, mesh, names, tmp_path / "several")
    resumed = train(0, path, Mesh(), names, tmp_path / "several", seed=9)
    spread = run_ranks(mesh.size, train, tmp_path / "again", path, mesh, names, tmp_path / "one", 9)
    for setting, expected in one.items():
        for result in (*several, resumed, *spread):
            assert_close(result[setting], expected, 1e-9)
    # what is rounded is not what is not
    assert len(names) == 1 or any(not torch.equal(one["Int8"][item], one["on the host"][item]) for item in one["Int8"])


@pytest.mark.parametrize(
    ("name", "width", "block"),
    [
        ("model.layers.0.self_attn.q_proj.weight", 256, 256),
        ("model.layers.0.mlp.down_proj.weight", 256, 64),
        ("model.layers.0.mlp.down_proj.base_layer.weight", 128, 64),
        ("model.layers.0.mlp.down_proj.lora_A.default.weight", 256, 64),
        ("model.layers.0.mlp.up_proj.lora_A.default.weight", 256, 256),
        ("model.layers.0.mlp.experts.down_proj", 256, 256),
        ("model.layers.0.self_attention.linear_proj.weight", 256, 64),
        ("model.embed_tokens.weight", 256, 256),
    ],
)
def test_blocks_are_small_where_ranks_may_split_columns(name: str, width: int, block: int) -> None:
    shape = torch.Size((4, width))
    assert block_of(shape, by_columns=may_split_columns(name)) == block
    if may_split_columns(name):  # and the parts of two ranks have the same
        assert block_of(torch.Size((4, width // 2)), by_columns=True) == block
