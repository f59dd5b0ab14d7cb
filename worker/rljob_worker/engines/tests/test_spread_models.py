"""A copy of the model spread over ranks, as real processes over gloo: the numbers of one rank that has it all."""

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
from rljob_worker.engines.models import WeightFiles, empty_policy, load_policy, random_policy
from rljob_worker.engines.parallel.shards import local_part
from rljob_worker.engines.tests.builders import (
    CONFIGS,
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

SHARED = replace(EXACT, tokens_per_micro_batch=7)
"""Of one worker: a pack of a copy has so many times the ranks that share it."""
RECOMPUTING = replace(SHARED, activation_checkpointing=True, held_bytes=0)
BALANCED = replace(SHARED, router_aux_loss_coefficient=0.1)
AT_ONCE = 30
"""Tokens of a pack on one rank."""

MESHES = {
    "one rank": Mesh(),
    "cp 2": Mesh(cp=2),
    "cp 3": Mesh(cp=3),  # which do not divide the two key heads: those go round
    "dp 2, cp 2": Mesh(dp=2, cp=2),
    "tp 2": Mesh(tp=2),
    "dp 2, tp 2": Mesh(dp=2, tp=2),
    "cp 2, tp 2": Mesh(cp=2, tp=2),  # one key head for two ranks
    "ep 2": Mesh(dp=2, ep=2),
    "cp 2, ep 2": Mesh(cp=2, ep=2),
    "cp 3, ep 3": Mesh(cp=3, ep=3),
    "dp 2, cp 2, ep 2": Mesh(dp=2, cp=2, ep=2),  # two ranks with the same experts
    "tp 2, ep 2": Mesh(tp=2, ep=2),
    "dp 2, tp 2, ep 2": Mesh(dp=2, tp=2, ep=2),
}
DENSE = [name for name, mesh in MESHES.items() if mesh.size > 1 and mesh.ep == 1]
SPREAD_EXPERTS = [name for name, mesh in MESHES.items() if mesh.ep > 1]


def train(rank: int, path: str, mesh: Mesh, settings: TrainSettings) -> dict[str, Any]:
    """What one rank of a mesh saw, and the weights that it ended with."""
    ranks = mesh_here(mesh)
    return seen(learn(path, settings, ranks), ranks)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_config(tmp_path_factory.mktemp("model"), "qwen3", tie_word_embeddings=True)


@pytest.fixture(scope="module")
def one(model: str) -> dict[str, Any]:
    return train(0, model, MESHES["one rank"], replace(EXACT, tokens_per_micro_batch=AT_ONCE))


@pytest.mark.parametrize("name", some_slow(DENSE, "cp 2, tp 2"))
def test_a_spread_model_trains_like_a_whole_one(tmp_path: Path, model: str, one: dict[str, Any], name: str) -> None:
    mesh = MESHES[name]
    ranks = run_ranks(mesh.size, train, tmp_path / "ranks", model, mesh, SHARED)
    assert_trained_alike(ranks, mesh, one)


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_config(tmp_path_factory.mktemp("experts"), "qwen3_moe")


@pytest.fixture(scope="module")
def one_with_experts(experts: str) -> dict[str, Any]:
    return train(0, experts, MESHES["one rank"], replace(BALANCED, tokens_per_micro_batch=AT_ONCE))


@pytest.mark.parametrize(
    "name",
    some_slow(["dp 2, cp 2", "dp 2, tp 2", *SPREAD_EXPERTS], "dp 2, tp 2, ep 2"),
)
def test_experts_train_and_are_balanced_alike(
    tmp_path: Path, experts: str, one_with_experts: dict[str, Any], name: str
) -> None:
    mesh = MESHES[name]
    ranks = run_ranks(mesh.size, train, tmp_path / "ranks", experts, mesh, BALANCED)
    assert_trained_alike(ranks, mesh, one_with_experts)
    names = ("update/expert_load_max", "update/expert_balance_loss")
    for result, expected in zip(ranks[0]["metrics"], one_with_experts["metrics"], strict=True):
        assert [result[name].value for name in names] == pytest.approx([expected[name].value for name in names])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dp 2, cp 2", "cp 3"])
def test_a_spread_model_that_recomputes_and_reduces_every_time_trains_the_same(
    tmp_path: Path, model: str, one: dict[str, Any], name: str
) -> None:
    mesh = MESHES[name]
    ranks = run_ranks(mesh.size, train, tmp_path / "ranks", model, mesh, RECOMPUTING)
    assert_trained_alike(ranks, mesh, one)


def write(rank: int, path: str, mesh: Mesh, directory: Path) -> dict[str, Any]:
    """A checkpoint and an export after one update, and one update further."""
    ranks = mesh_here(mesh)
    engine = FSDPEngine(random_policy(path, torch.float64, 0), SHARED, CPU, ranks)
    engine.update(share(0, ranks), PolicyGradient())
    save(engine, directory / "checkpoint")
    export_of(engine, directory / "exported")
    export_of(engine, directory / "files", file_bytes=20_000)
    own = [
        name
        for bucket in engine.weight_buckets([mesh.size - 1, 0][: mesh.size], bucket_bytes=9000)
        for name, _ in bucket
    ]
    metrics = engine.update(share(1, ranks), PolicyGradient())
    return {"weights": snapshot(engine), "own": own, "metrics": [metrics if ranks.is_leader else {}]}


def go_on(rank: int, path: str, mesh: Mesh, directory: Path) -> dict[str, Any]:
    """The second update of `write`, from its checkpoint."""
    ranks = mesh_here(mesh)
    engine = FSDPEngine(random_policy(path, torch.float64, 99), SHARED, CPU, ranks)
    engine.load(directory / "checkpoint")
    metrics = engine.update(share(1, ranks), PolicyGradient())
    return {"weights": snapshot(engine), "metrics": [metrics if ranks.is_leader else {}]}


def assert_went_on_alike(after: list[dict[str, Any]], before: list[dict[str, Any]]) -> None:
    for name in ("update/loss", "update/gradient_norm"):
        assert merged(after, 0, name) == pytest.approx(merged(before, 0, name), abs=1e-12), name
    for result in after:
        assert_close(result["weights"], before[0]["weights"], 1e-12)


@pytest.fixture(scope="module")
def written(model: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """By four ranks, two of which split matrices."""
    directory = tmp_path_factory.mktemp("written")
    return directory, run_ranks(4, write, directory / "ranks", model, MESHES["dp 2, tp 2"], directory)


@pytest.mark.parametrize("name", some_slow(["one rank", "tp 2", "cp 2, tp 2"], "one rank"))
def test_a_run_goes_on_in_another_layout(
    tmp_path: Path, model: str, written: tuple[Path, list[dict[str, Any]]], name: str
) -> None:
    directory, before = written
    mesh = MESHES[name]
    if mesh.size == 1:
        after = [go_on(0, model, mesh, directory)]
    else:
        after = run_ranks(mesh.size, go_on, tmp_path / "ranks", model, mesh, directory)
    assert_went_on_alike(after, before)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(Mesh(tp=2), Mesh(dp=2), id="tp 2 to dp 2"),
        pytest.param(Mesh(cp=2), Mesh(), id="cp 2 to one rank"),
        pytest.param(Mesh(cp=3), Mesh(tp=2), id="a ring to tp 2"),
        pytest.param(Mesh(dp=2), Mesh(cp=3), id="dp 2 to a ring"),
    ],
)
def test_a_run_goes_on_where_the_same_workers_share_out_something_else(
    tmp_path: Path, model: str, before: Mesh, after: Mesh
) -> None:
    wrote = run_ranks(before.size, write, tmp_path / "before", model, before, tmp_path)
    assert_went_on_alike(run_ranks(after.size, go_on, tmp_path / "after", model, after, tmp_path), wrote)


@pytest.fixture(scope="module")
def written_experts(experts: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    directory = tmp_path_factory.mktemp("experts")
    return directory, run_ranks(4, write, directory / "ranks", experts, MESHES["dp 2, cp 2, ep 2"], directory)


@pytest.mark.parametrize("name", some_slow(["one rank", "ep 2", "dp 2, tp 2, ep 2"], "dp 2, tp 2, ep 2"))
def test_spread_experts_go_on_in_another_layout(
    tmp_path: Path, experts: str, written_experts: tuple[Path, list[dict[str, Any]]], name: str
) -> None:
    directory, before = written_experts
    mesh = MESHES[name]
    assert_went_on_alike(run_ranks(mesh.size, go_on, tmp_path / "ranks", experts, mesh, directory), before)


def test_spread_experts_are_exported_whole(experts: str, written_experts: tuple[Path, list[dict[str, Any]]]) -> None:
    directory, ranks = written_experts
    engine = FSDPEngine(random_policy(experts, torch.float64, 99), EXACT, CPU)
    engine.load(directory / "checkpoint")
    for place in ("exported", "files"):
        stock = AutoModelForCausalLM.from_pretrained(directory / place, dtype=torch.float64)
        mine = load_policy(str(directory / place), torch.float64, CPU)
        assert_close(dict(mine.named_parameters()), dict(engine.model.named_parameters()), 0.0)
        assert_close(dict(stock.named_parameters()), dict(engine.model.named_parameters()), 0.0)
    first, *others, last = (rank["own"] for rank in ranks)
    assert first and last and others == [[], []]
    assert sorted(first + last) == sorted(name for name, _ in engine.weights())


def test_what_is_split_is_exported_whole(model: str, written: tuple[Path, list[dict[str, Any]]]) -> None:
    directory, _ = written
    engine = FSDPEngine(random_policy(model, torch.float64, 99), EXACT, CPU)
    engine.load(directory / "checkpoint")
    for place in ("exported", "files"):
        exported = load_policy(str(directory / place), torch.float64, CPU)
        assert_close(dict(exported.named_parameters()), snapshot(engine), 0.0)
    assert len(list((directory / "files").glob("*.safetensors"))) > 3
    stock = AutoModelForCausalLM.from_pretrained(directory / "files", dtype=torch.float64)
    assert_close(dict(stock.named_parameters()), snapshot(engine), 0.0)


def test_sources_get_every_tensor_of_a_split_model_once(model: str, written: tuple[Path, list[dict[str, Any]]]) -> None:
    first, *others, last = (rank["own"] for rank in written[1])
    assert first and last and others == [[], []]
    names = [name for name, _ in FSDPEngine(random_policy(model, torch.float64, 0), EXACT, CPU).weights()]
    assert sorted(first + last) == sorted(names)


def test_split_models_read_their_own_parts_of_files(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model", "qwen2", tie_word_embeddings=False)
    whole = dict(load_policy(path, torch.float64, CPU).named_parameters())
    for rank in run_ranks(4, read, tmp_path / "ranks", path, MESHES["dp 2, tp 2"]):
        assert_close(rank, whole, 0.0)


def test_spread_experts_are_read_from_files(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model", "qwen3_moe")
    whole = dict(FSDPEngine(load_policy(path, torch.float64, CPU), EXACT, CPU).weights())
    for rank in run_ranks(4, read_experts, tmp_path / "ranks", path, MESHES["dp 2, cp 2, ep 2"]):
        assert_close(rank, whole, 0.0)


def read_experts(rank: int, path: str, mesh: Mesh) -> dict[str, torch.Tensor]:
    ranks = mesh_here(mesh)
    engine = FSDPEngine(empty_policy(path, torch.float64), EXACT, CPU, ranks, WeightFiles.find(path))
    (own, *_) = (parameter for name, parameter in engine.model.named_parameters() if name.endswith("gate_up_proj"))
    # six experts: three for each of two, of which two ranks have two and one
    assert own.shape[0] == 3 and local_part(own).shape[0] == (2, 2, 1, 1)[rank], "a rank has more than its part"
    return snapshot(engine)


def read(rank: int, path: str, mesh: Mesh) -> dict[str, torch.Tensor]:
    ranks = mesh_here(mesh)
    engine = FSDPEngine(empty_policy(path, torch.float64), EXACT, CPU, ranks, WeightFiles.find(path))
    own = dict(engine.model.named_parameters())["model.layers.0.self_attn.q_proj.weight"]
    assert own.shape == (16, 32) and local_part(own).shape == (8, 32), "a rank has more than its part"
    return snapshot(engine)


def score_families(rank: int, paths: dict[str, str], mesh: Mesh) -> dict[str, np.ndarray]:
    ranks = mesh_here(mesh)
    settings = TrainSettings(precision="Float64", trainable=False)
    engines = {
        kind: FSDPEngine(load_policy(path, torch.float64, CPU), settings, CPU, ranks) for kind, path in paths.items()
    }
    batch = a_batch([12, 3, 9, 10], longest_prompt=9)
    return {kind: engine.log_probs(batch).values for kind, engine in engines.items()}


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """Where their models are, and what one rank scores with each."""
    paths = {kind: write_model(tmp_path_factory.mktemp(kind), kind, draws_biases=True) for kind in CONFIGS}
    return paths, score_families(0, paths, MESHES["one rank"])


@pytest.mark.parametrize("name", some_slow(["cp 2", "cp 3", "tp 2"], "cp 3"))
def test_every_family_scores_alike_when_it_is_spread(
    tmp_path: Path, families: tuple[dict[str, str], dict[str, np.ndarray]], name: str
) -> None:
    paths, whole = families
    mesh = MESHES[name]
    # gpt2 and phi3 have several matrices in one, which ranks do not split
    kinds = {kind: path for kind, path in paths.items() if mesh.tp == 1 or kind not in ("gpt2", "phi3")}
    for rank in run_ranks(mesh.size, score_families, tmp_path, kinds, mesh):
        for kind in kinds:
            np.testing.assert_allclose(rank[kind], whole[kind], atol=1e-6, err_msg=kind)
