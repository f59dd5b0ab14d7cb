"""Models with experts in pipeline stages, as real processes over gloo: the numbers of one rank that has all layers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rljob_api.pipeline.meshes import Mesh
from rljob_worker.engines.fsdp import FSDPEngine, TrainSettings
from rljob_worker.engines.fsdp.layers import TRANSFORMERS
from rljob_worker.engines.megatron.library import megatron_layers
from rljob_worker.engines.models import load_policy, random_policy
from rljob_worker.engines.tests.builders import (
    PolicyGradient,
    a_batch,
    export_of,
    mesh_here,
    routed,
    save,
    some_slow,
    write_config,
)
from rljob_worker.engines.tests.ranks import run_ranks
from rljob_worker.engines.tests.uneven import (
    CPU,
    EXACT,
    assert_close,
    assert_trained_alike,
    learn,
    merged,
    seen,
    share,
    snapshot,
)

SHARED = replace(EXACT, tokens_per_micro_batch=7)
FIGURES = ("update/expert_load_max", "update/expert_load_min", "update/expert_balance_loss")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three layers, of which the first has no experts: the first of three stages has none to balance or to follow."""
    # of smaller weights experts have gradients beside which AdamW's 1e-8 is large: it tells roundings of 1e-18 apart
    sizes = {"initializer_range": 0.05, "num_hidden_layers": 3, "mlp_only_layers": [0]}
    return write_config(tmp_path_factory.mktemp("model"), "qwen3_moe", **sizes)


def train(rank: int, path: str, mesh: Mesh, settings: TrainSettings) -> dict[str, Any]:
    ranks = mesh_here(mesh)
    return seen(learn(path, settings, ranks, megatron_layers(CPU)), ranks)


def one_rank(path: str, coefficient: float) -> dict[str, Any]:
    here, settings = mesh_here(Mesh()), replace(EXACT, router_aux_loss_coefficient=coefficient)
    return seen(learn(path, settings, here), here)


@pytest.mark.parametrize(
    ("mesh", "coefficient"),
    some_slow(
        [
            (Mesh(pp=2), 0.1),
            (Mesh(pp=3), 0.1),
            (Mesh(pp=3), 0.0),  # the load is known at another moment: no pass counts before
            (Mesh(dp=2, pp=2), 0.1),
            (Mesh(dp=2, pp=2, ep=2), 0.1),
            (Mesh(pp=2, tp=2, ep=2), 0.1),
        ],
        (Mesh(pp=3), 0.0),
    ),
    ids=["pp 2", "pp 3", "pp 3 without a cost", "dp 2 pp 2", "dp 2 pp 2 ep 2", "pp 2 tp 2 ep 2"],
)
def test_stages_train_and_balance_like_one_rank(tmp_path: Path, path: str, mesh: Mesh, coefficient: float) -> None:
    one = one_rank(path, coefficient)
    settings = replace(SHARED, router_aux_loss_coefficient=coefficient, activation_checkpointing=mesh.dp == 1)
    ranks = run_ranks(mesh.size, train, tmp_path, path, mesh, settings)
    assert_trained_alike(ranks, mesh, one)
    for result, expected in zip(ranks[0]["metrics"], one["metrics"], strict=True):
        assert [result[name].value for name in FIGURES] == pytest.approx([expected[name].value for name in FIGURES])


def replay(rank: int, path: str, mesh: Mesh, settings: TrainSettings) -> dict[str, Any]:
    """Log-probs by the routes of a batch, and an update."""
    layers = TRANSFORMERS if mesh.size == 1 else megatron_layers(CPU)
    model = random_policy(path, torch.float64, 0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".experts." in name:
                parameter.mul_(10)  # enough to differ in what they predict
    engine = FSDPEngine(model, settings, CPU, mesh_here(mesh), layers=layers)
    batch = routed(a_batch([5, 1, 9, 3, 0, 7, 2, 8]))
    log_probs = engine.log_probs(batch).values
    engine.update(batch, PolicyGradient())
    return {"log_probs": log_probs, "weights": snapshot(engine)}


def test_stages_follow_the_routes_of_the_micro_batch_that_they_are_at(tmp_path: Path, path: str) -> None:
    settings = replace(EXACT, follows_routes=True, router_aux_loss_coefficient=0.1)
    one = replay(0, path, Mesh(), settings)
    packed = replace(settings, tokens_per_micro_batch=7, activation_checkpointing=True)
    own = replay(0, path, Mesh(), replace(settings, follows_routes=False))
    assert np.abs(own["log_probs"] - one["log_probs"]).max() > 1e-3
    for rank in run_ranks(3, replay, tmp_path, path, Mesh(pp=3), packed):
        np.testing.assert_allclose(rank["log_probs"], one["log_probs"], atol=1e-6)
        assert_close(rank["weights"], one["weights"], 1e-12)


def write(rank: int, path: str, mesh: Mesh, directory: Path) -> dict[str, Any]:
    """A checkpoint and files after one update, and one update further."""
    ranks = mesh_here(mesh)
    engine = FSDPEngine(random_policy(path, torch.float64, 0), SHARED, CPU, ranks, layers=megatron_layers(CPU))
    engine.update(share(0, ranks), PolicyGradient())
    save(engine, directory / "checkpoint")
    export_of(engine, directory / "exported", checkpoint=directory / "checkpoint")
    after = snapshot(engine)
    own = [name for bucket in engine.weight_buckets([mesh.size - 1, 0], bucket_bytes=9000) for name, _ in bucket]
    metrics = engine.update(share(1, ranks), PolicyGradient())
    return {
        "written": after,
        "own": own,
        "weights": snapshot(engine),
        "metrics": [metrics if ranks.is_leader else {}],
    }


def go_on(rank: int, path: str, mesh: Mesh, directory: Path) -> dict[str, Any]:
    """The second update of `write`, from its checkpoint."""
    ranks = mesh_here(mesh)
    engine = FSDPEngine(random_policy(path, torch.float64, 99), SHARED, CPU, ranks, layers=megatron_layers(CPU))
    engine.load(directory / "checkpoint")
    metrics = engine.update(share(1, ranks), PolicyGradient())
    return {"weights": snapshot(engine), "metrics": [metrics if ranks.is_leader else {}]}


@pytest.mark.slow
def test_spread_experts_go_on_in_other_stages_and_are_exported_one_by_one(tmp_path: Path, path: str) -> None:
    wrote = run_ranks(4, write, tmp_path / "ranks", path, Mesh(dp=2, pp=2, ep=2), tmp_path)
    for mesh in (Mesh(pp=3), Mesh(tp=2, ep=2)):
        after = run_ranks(mesh.size, go_on, tmp_path / f"pp {mesh.pp}", path, mesh, tmp_path)
        assert merged(after, 0, "update/loss") == pytest.approx(merged(wrote, 0, "update/loss"), abs=1e-12)
        for rank in after:
            assert_close(rank["weights"], wrote[0]["weights"], 1e-12)
    stock = AutoModelForCausalLM.from_pretrained(tmp_path / "exported", dtype=torch.float64)
    mine = load_policy(str(tmp_path / "exported"), torch.float64, CPU)
    assert_close(dict(stock.named_parameters()), dict(mine.named_parameters()), 0.0)
    assert_close(dict(FSDPEngine(mine, EXACT, CPU).weights()), wrote[0]["written"], 0.0)
    assert sorted(name for rank in wrote for name in rank["own"]) == sorted(wrote[0]["written"])
