"""Adapters of models that are spread over ranks, as real processes over gloo: what one rank learns that has it all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rljob_api.pipeline.meshes import Mesh
from rljob_worker.engines.fsdp import BaseModel, FSDPEngine
from rljob_worker.engines.models import Adapter, WeightFiles, empty_policy, empty_value_model
from rljob_worker.engines.parallel.shards import local_part
from rljob_worker.engines.tests.builders import PolicyGradient, ValueRegression, mesh_here, save, write_model
from rljob_worker.engines.tests.ranks import run_ranks
from rljob_worker.engines.tests.uneven import CPU, EXACT, assert_close, share, snapshot

MESHES = {
    "tp 2": Mesh(tp=2),
    "dp 2, tp 2": Mesh(dp=2, tp=2),
    "cp 2, tp 2": Mesh(cp=2, tp=2),
    "cp 3": Mesh(cp=3),
    "dp 4, rp 2": Mesh(dp=4, rp=2),
}


def adapter(path: str) -> Adapter:
    """Beside every matrix, those that are split by outputs and those by inputs."""
    return Adapter(path, rank=3, alpha=6.0, targets=())


def policy(rank: int, path: str, mesh: Mesh) -> FSDPEngine:
    files = WeightFiles.find(path)
    return FSDPEngine(empty_policy(path, torch.float64), EXACT, CPU, mesh_here(mesh), files, adapter(path))


def train(rank: int, path: str, mesh: Mesh, directory: Path) -> dict[str, Any]:
    """Two updates with a checkpoint between them, and a critic's."""
    engine, ranks = policy(rank, path, mesh), mesh_here(mesh)
    drawn = snapshot(engine)
    norms = [engine.update(share(0, ranks), PolicyGradient())["update/gradient_norm"].value]
    save(engine, directory / "checkpoint")
    norms.append(engine.update(share(1, ranks), PolicyGradient())["update/gradient_norm"].value)
    critic = FSDPEngine(
        empty_value_model(path, torch.float64), EXACT, CPU, ranks, WeightFiles.find(path), adapter(path)
    )
    critic.update(share(0, ranks), ValueRegression())
    norms.append(critic.update(share(0, ranks), ValueRegression())["update/gradient_norm"].value)
    return {
        "drawn": drawn,
        "norms": norms,
        "weights": snapshot(engine),
        "critic": snapshot(critic),
        "log_probs": engine.log_probs(share(0, ranks)).values,
        "base": BaseModel(engine).log_probs(share(0, ranks)).values,
    }


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("model"), "qwen2")  # with biases


@pytest.fixture(scope="module")
def one(model: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    directory = tmp_path_factory.mktemp("one")
    return directory, train(0, model, Mesh(), directory)


@pytest.mark.slow
@pytest.mark.parametrize("name", MESHES)
def test_an_adapter_of_a_spread_model_learns_what_one_rank_learns(
    tmp_path: Path, model: str, one: tuple[Path, dict[str, Any]], name: str
) -> None:
    _, expected = one
    mesh = MESHES[name]
    ranks = run_ranks(mesh.size, train, tmp_path / "ranks", model, mesh, tmp_path)
    for rank in ranks:
        assert rank["norms"] == pytest.approx(expected["norms"], abs=1e-12) and min(rank["norms"]) > 0
        for kind in ("drawn", "weights", "critic"):
            assert_close(rank[kind], expected[kind], 1e-12)
    for kind in ("log_probs", "base"):
        copies = [rank[kind] for index, rank in enumerate(ranks) if mesh.is_row_leader(index)]
        np.testing.assert_allclose(np.concatenate(copies), expected[kind], atol=1e-6)
    assert np.abs(expected["log_probs"] - expected["base"]).max() > 1e-3


def go_on(rank: int, path: str, mesh: Mesh, directory: Path) -> dict[str, torch.Tensor]:
    """The second update, from the checkpoint of another layout; a rank has its part of what is split."""
    engine, ranks = policy(rank, path, mesh), mesh_here(mesh)
    engine.load(directory / "checkpoint")
    engine.update(share(1, ranks), PolicyGradient())
    parts = {name: tuple(local_part(parameter).shape) for name, parameter in engine.model.named_parameters()}
    layer = "model.layers.0.self_attn"
    # 32 wide, 4 heads; of 3 rows of A two ranks that share them have 2 and 1
    assert parts[f"{layer}.q_proj.lora_A.default.weight"][1] == 32
    assert parts[f"{layer}.q_proj.lora_B.default.weight"] == (32 // mesh.size, 3)
    assert parts[f"{layer}.o_proj.lora_A.default.weight"][1] == 32 // mesh.tp
    return snapshot(engine)


@pytest.mark.slow
def test_an_adapter_goes_on_in_another_layout(tmp_path: Path, model: str, one: tuple[Path, dict[str, Any]]) -> None:
    directory, expected = one
    mesh = MESHES["dp 2, tp 2"]
    for run_rank in run_ranks(4, go_on, tmp_path / "spread", model, mesh, directory):
        assert_close(run_rank, expected["weights"], 1e-12)
    run_ranks(2, train, tmp_path / "ranks", model, MESHES["tp 2"], tmp_path)
    assert_close(go_on(0, model, Mesh(), tmp_path), expected["weights"], 1e-12)
