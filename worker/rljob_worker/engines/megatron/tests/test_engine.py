"""Megatron-core's layers train what transformers' own do, and hand it on under the same names."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from rljob_api.pipeline.meshes import Mesh
from rljob_worker.engines.fsdp import FSDPEngine, TrainSettings
from rljob_worker.engines.fsdp.layers import TRANSFORMERS, Layers
from rljob_worker.engines.megatron.families import COMPUTED
from rljob_worker.engines.megatron.library import megatron_layers
from rljob_worker.engines.models import WeightFiles, empty_policy, load_policy, random_policy
from rljob_worker.engines.rollout.transformers import TransformersRollout
from rljob_worker.engines.tests.builders import (
    CONFIGS,
    END,
    PolicyGradient,
    a_batch,
    export_of,
    mesh_here,
    save,
    some_slow,
    write_config,
    write_model,
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
from rljob_worker.errors import InvalidJob

FAMILIES = ("qwen2", "qwen3", "llama", "qwen3_moe")
BATCH = a_batch([5, 1, 9, 3, 0, 7, 2, 8])
SHARED = replace(EXACT, tokens_per_micro_batch=7)


def engine(path: str, settings: TrainSettings, layers: Layers, seed: int = 0) -> FSDPEngine:
    return FSDPEngine(random_policy(path, settings.master_dtype, seed), settings, CPU, layers=layers)


def from_files(path: str, settings: TrainSettings = EXACT) -> FSDPEngine:
    model = empty_policy(path, settings.master_dtype)
    return FSDPEngine(model, settings, CPU, weights=WeightFiles.find(path), layers=megatron_layers(CPU))


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_learned_in_float64_is_the_same(tmp_path: Path, family: str) -> None:
    path = write_config(tmp_path, family)
    here = mesh_here(Mesh())
    one = seen(learn(path, EXACT, here), here)
    assert_trained_alike([seen(learn(path, EXACT, here, megatron_layers(CPU)), here)], Mesh(), one)


def test_a_layer_that_slides_sees_its_window_alone(tmp_path: Path) -> None:
    slides = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}  # the second layer
    path = write_config(tmp_path, "qwen3", **slides)
    stock, megatron = (engine(path, EXACT, layers) for layers in (TRANSFORMERS, megatron_layers(CPU)))
    np.testing.assert_allclose(megatron.log_probs(BATCH).values, stock.log_probs(BATCH).values, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_and_a_step_in_float32_are_close(tmp_path: Path, family: str) -> None:
    path = write_config(tmp_path, family)
    settings = TrainSettings(learning_rate=1e-3, temperature=0.8)
    stock, megatron = (engine(path, settings, layers) for layers in (TRANSFORMERS, megatron_layers(CPU)))
    np.testing.assert_allclose(megatron.log_probs(BATCH).values, stock.log_probs(BATCH).values, atol=1e-5)
    for item in (stock, megatron):
        item.update(BATCH, PolicyGradient())
    # a first step is 1e-3 long whatever the gradient's size: digits of small gradients are many of it
    assert_close(snapshot(megatron), snapshot(stock), 5e-6)


@pytest.mark.parametrize(
    ("changes", "tolerance"),
    [
        ({"activation_checkpointing": True}, 1e-12),
        ({"states": "BFloat16"}, 1e-5),  # a mean that differs in its last digit may be rounded to another number
        ({"precision": "BFloat16"}, 2.5e-3),  # products are rounded in another order where gate and up are one matrix
    ],
    ids=["recomputing", "rounded states", "mixed"],
)
def test_memory_is_saved_as_with_other_layers(tmp_path: Path, changes: dict[str, Any], tolerance: float) -> None:
    path = write_config(tmp_path)
    settings = TrainSettings(**{"precision": "Float64", "learning_rate": 1e-3, **changes})
    stock, megatron = (engine(path, settings, layers) for layers in (TRANSFORMERS, megatron_layers(CPU)))
    norms = [item.update(BATCH, PolicyGradient())["update/gradient_norm"].value for item in (stock, megatron)]
    assert norms[1] == pytest.approx(norms[0], rel=2e-2 if settings.is_mixed else 1e-12)
    assert_close(snapshot(megatron), snapshot(stock), tolerance)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_read_is_sent_and_exported_bit_for_bit(tmp_path: Path, family: str) -> None:
    path = write_model(tmp_path / "source", family)
    trained = from_files(path, TrainSettings())
    source = load_file(tmp_path / "source" / "model.safetensors")
    export_of(trained, tmp_path / "exported")
    for result in (load_file(tmp_path / "exported" / "model.safetensors"), dict(trained.weights())):
        assert result.keys() == source.keys()
        assert all(torch.equal(result[name], source[name]) for name in source)
    again = from_files(str(tmp_path / "exported"), TrainSettings())
    assert_close(snapshot(again), source, 0.0)


def test_generating_models_get_the_weights_and_share_none(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    trained = engine(path, TrainSettings(), megatron_layers(CPU))
    assert not trained.can_lend_weights
    rollout = TransformersRollout(random_policy(path, torch.float32, 7), CPU, (END,))
    rollout.load_weights(trained.weights(), 1)
    expected = dict(random_policy(path, torch.float32, 0).named_parameters())
    assert_close(dict(rollout.model.named_parameters()), expected, 0.0)


def test_training_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    path = write_config(tmp_path / "model")
    straight = engine(path, EXACT, megatron_layers(CPU))
    straight.update(BATCH, PolicyGradient())
    save(straight, tmp_path / "checkpoint")
    straight.update(BATCH, PolicyGradient())
    resumed = engine(path, EXACT, megatron_layers(CPU), seed=9)
    resumed.load(tmp_path / "checkpoint")
    resumed.update(BATCH, PolicyGradient())
    assert_close(snapshot(resumed), snapshot(straight), 0.0)


def test_a_checkpoint_of_another_engine_is_refused_by_name(tmp_path: Path) -> None:
    path = write_config(tmp_path / "model")
    engines = {"FSDP": engine(path, EXACT, TRANSFORMERS), "Megatron": engine(path, EXACT, megatron_layers(CPU))}
    for writer, reader in (("FSDP", "Megatron"), ("Megatron", "FSDP")):
        save(engines[writer], tmp_path / writer)
        with pytest.raises(InvalidJob, match=f"training.engine {writer} wrote it, and this job has {reader}"):
            engines[reader].load(tmp_path / writer)


def test_the_families_that_are_computed_are_those_held_against_transformers() -> None:
    assert set(FAMILIES) == COMPUTED


@pytest.mark.parametrize("family", sorted(set(CONFIGS) - set(FAMILIES)))
def test_a_family_that_its_layers_would_compute_wrongly_is_refused_by_name(tmp_path: Path, family: str) -> None:
    path = write_config(tmp_path, family)
    with pytest.raises(InvalidJob, match=f"do not compute models of type '{family}', but llama, qwen2, .*; write FSDP"):
        engine(path, EXACT, megatron_layers(CPU))


def test_biases_that_megatron_has_not_are_refused(tmp_path: Path) -> None:
    path = write_config(tmp_path, "llama", attention_bias=True, mlp_bias=True)
    with pytest.raises(InvalidJob, match="layers with attention_bias and mlp_bias are not built yet"):
        engine(path, EXACT, megatron_layers(CPU))


def test_a_machine_without_megatron_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [
        module for module in sys.modules if module.startswith(("megatron.", "rljob_worker.engines.megatron."))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "megatron", None)
    with pytest.raises(InvalidJob, match=r"this environment has no Megatron-core; pip install 'rljob\[megatron\]', or"):
        megatron_layers(CPU)


def train(rank: int, path: str, mesh: Mesh, settings: TrainSettings) -> dict[str, Any]:
    ranks = mesh_here(mesh)
    return seen(learn(path, settings, ranks, megatron_layers(CPU)), ranks)


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_config(tmp_path_factory.mktemp("model"), "qwen3", tie_word_embeddings=True)


@pytest.fixture(scope="module")
def one(tied: str) -> dict[str, Any]:
    here = mesh_here(Mesh())
    return seen(learn(tied, EXACT, here), here)


@pytest.mark.parametrize(
    "mesh",
    some_slow([Mesh(dp=3), Mesh(tp=2), Mesh(cp=2), Mesh(dp=2, tp=2), Mesh(cp=2, tp=2)], Mesh(tp=2)),
    ids=["dp 3", "tp 2", "cp 2", "dp 2 tp 2", "cp 2 tp 2"],
)
def test_ranks_train_like_one(tmp_path: Path, tied: str, one: dict[str, Any], mesh: Mesh) -> None:
    ranks = run_ranks(mesh.size, train, tmp_path / "ranks", tied, mesh, SHARED)
    assert_trained_alike(ranks, mesh, one)


@pytest.mark.parametrize(
    "mesh", some_slow([Mesh(dp=2, ep=2), Mesh(tp=2, ep=2)], Mesh(tp=2, ep=2)), ids=["dp 2 ep 2", "tp 2 ep 2"]
)
def test_ranks_that_share_experts_train_like_one(tmp_path: Path, mesh: Mesh) -> None:
    path, here = write_config(tmp_path, "qwen3_moe"), mesh_here(Mesh())
    balanced = replace(SHARED, router_aux_loss_coefficient=0.1)
    one = seen(learn(path, balanced, here), here)
    ranks = run_ranks(mesh.size, train, tmp_path / "ranks", path, mesh, balanced)
    assert_trained_alike(ranks, mesh, one)


def go_on(rank: int, path: str, mesh: Mesh, directory: Path, *, begins: bool) -> dict[str, Any]:
    """One update that ends in a checkpoint and an export; or one that begins with the checkpoint."""
    ranks = mesh_here(mesh)
    model = random_policy(path, torch.float64, 0 if begins else 99)
    trained = FSDPEngine(model, SHARED, CPU, ranks, layers=megatron_layers(CPU))
    if begins:
        result = trained.update(share(0, ranks), PolicyGradient())
        save(trained, directory / "checkpoint")
        export_of(trained, directory / "exported")
    else:
        trained.load(directory / "checkpoint")
        result = trained.update(share(1, ranks), PolicyGradient())
    own = [name for bucket in trained.weight_buckets([mesh.size - 1, 0][: mesh.size]) for name, _ in bucket]
    return {"weights": snapshot(trained), "metrics": [result if ranks.is_leader else {}], "own": own}


@pytest.mark.parametrize(
    "written_by",
    some_slow([Mesh(tp=2), Mesh(pp=2), Mesh(dp=2, rp=2, pp=2)], Mesh(dp=2, rp=2, pp=2)),
    ids=["tp 2", "pp 2", "dp 2 rp 2 pp 2"],
)
def test_a_checkpoint_goes_on_in_another_layout(tmp_path: Path, written_by: Mesh) -> None:
    path = write_config(tmp_path / "model", "qwen2")
    begin, end = (partial(go_on, begins=begins) for begins in (True, False))
    begun = run_ranks(written_by.size, begin, tmp_path / "begin", path, written_by, tmp_path)
    straight = go_on(0, path, Mesh(), tmp_path, begins=False)
    for name, mesh in (("dp", Mesh(dp=2)), ("tp", Mesh(tp=2)), ("pp", Mesh(pp=2))):
        result = run_ranks(2, end, tmp_path / name, path, mesh, tmp_path)
        for rank in result:
            assert_close(rank["weights"], straight["weights"], 1e-12)
        assert merged(result, 0, "update/loss") == pytest.approx(merged([straight], 0, "update/loss"), abs=1e-12)
    exported = load_policy(str(tmp_path / "exported"), torch.float64, CPU)
    assert_close(dict(exported.named_parameters()), begun[0]["weights"], 0.0)
    first, *others, last = (rank["own"] for rank in begun)
    assert last and not any(others) and sorted(first + last) == sorted(begun[0]["weights"])
