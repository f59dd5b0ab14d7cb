"""Weights that a job draws: as transformers would draw them, and the same whoever has which part of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from rljob_api.pipeline.meshes import Mesh
from rljob_worker.engines.fsdp import FSDPEngine, TrainSettings
from rljob_worker.engines.fsdp.layers import TRANSFORMERS
from rljob_worker.engines.megatron.library import megatron_layers
from rljob_worker.engines.models import (
    Adapter,
    DrawnWeights,
    checkpoint_tensors,
    empty_policy,
    empty_value_model,
    random_policy,
    random_value_model,
)
from rljob_worker.engines.tests.builders import CONFIGS, mesh_here, mesh_of_all, write_config
from rljob_worker.engines.tests.peak import Peak
from rljob_worker.engines.tests.ranks import run_ranks

CPU = torch.device("cpu")
SEED = 5
WIDE = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 24}


@pytest.mark.parametrize("kind", CONFIGS)
def test_tensors_are_spread_as_transformers_spreads_them(tmp_path: Path, kind: str) -> None:
    path = write_config(tmp_path, kind)
    drawn = dict(random_policy(path, torch.float32, SEED).named_parameters())
    torch.manual_seed(0)
    stock = dict(AutoModelForCausalLM.from_config(CONFIGS[kind]()).named_parameters())
    assert drawn.keys() == stock.keys()
    for name, expected in stock.items():
        result, spread = drawn[name].detach(), float(expected.detach().std())
        if spread == 0:  # norms and biases
            assert torch.equal(result, expected), name
        else:  # of 192 numbers or more: by chance two spreads are 7 % apart
            assert float(result.std()) == pytest.approx(spread, rel=0.2), name
            assert abs(float(result.mean())) < 0.2 * spread, name


def test_each_tensor_has_numbers_of_its_own_and_of_the_seed(tmp_path: Path) -> None:
    path = write_config(tmp_path, "qwen3_moe")
    one, again, other = (dict(checkpoint_tensors(_named(path, seed))) for seed in (SEED, SEED, SEED + 1))
    weights = {name: tensor for name, tensor in one.items() if tensor.std() > 0}
    assert all(torch.equal(tensor, again[name]) for name, tensor in one.items())
    assert not any(torch.equal(tensor, other[name]) for name, tensor in weights.items())
    begins = {float(tensor.detach().flatten()[0]) for tensor in weights.values()}
    assert len(begins) == len(weights)  # experts one by one


def _named(path: str, seed: int) -> list[tuple[str, torch.Tensor]]:
    return list(random_policy(path, torch.float32, seed).named_parameters())


def test_a_critic_begins_as_its_policy(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    policy, critic = random_policy(path, torch.float32, SEED), random_value_model(path, torch.float32, SEED)
    expected = dict(policy.base_model.named_parameters())
    assert all(torch.equal(item, expected[name]) for name, item in critic.backbone.named_parameters())
    assert not any(parameter.any() for parameter in critic.value_head.parameters())


def test_the_numbers_of_others_are_not_disturbed(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    random_policy(path, torch.float32, SEED)
    assert torch.equal(torch.rand(1), expected)


def own_part(rank: int, path: str, mesh: Mesh, library: str, adapted: bool) -> dict[str, torch.Tensor]:
    """What ranks drew together, whole."""
    layers = megatron_layers(CPU) if library == "Megatron" else TRANSFORMERS
    model, settings = empty_policy(path, torch.float32), TrainSettings(min_unit_bytes=0)
    adapter = Adapter(path, rank=2, alpha=4.0, targets=("q_proj",)) if adapted else None
    drawn = DrawnWeights.of(model, SEED)
    engine = FSDPEngine(model, settings, CPU, mesh_here(mesh), drawn, adapter, layers)
    return {name: tensor.clone() for name, tensor in engine.weights(torch.float32)}


@pytest.mark.parametrize(
    ("kind", "library", "mesh"),
    [
        ("qwen3", "FSDP", Mesh(dp=2)),
        ("qwen3", "FSDP", Mesh(tp=2)),
        ("qwen3_moe", "FSDP", Mesh(dp=2, ep=2)),
        ("qwen3", "Megatron", Mesh()),
        ("qwen3", "Megatron", Mesh(dp=2)),
        ("qwen3", "Megatron", Mesh(tp=2)),
        ("qwen3_moe", "Megatron", Mesh(pp=2)),
    ],
    ids=str,
)
def test_weights_are_the_same_on_any_ranks_and_with_either_library(
    tmp_path: Path, kind: str, library: str, mesh: Mesh
) -> None:
    path = write_config(tmp_path / "model", kind, tie_word_embeddings=True)
    ranks = run_ranks(mesh.size, own_part, tmp_path / "ranks", path, mesh, library, False)
    expected = dict(checkpoint_tensors(_named(path, SEED)))
    for rank in ranks:
        assert rank.keys() == expected.keys()
        assert all(torch.equal(tensor, expected[name]) for name, tensor in rank.items())


def test_what_an_adapter_is_beside_is_drawn_alike(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    expected = dict(_named(path, SEED))
    result = own_part(0, path, Mesh(), "FSDP", True)  # merged with an adapter that is zero
    assert result.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in result.items())


def draw(rank: int, path: str) -> dict[str, int]:
    """The peak of drawing on one of the ranks, of a policy that is only asked, and of a critic."""
    peaks = {}
    settings = TrainSettings(trainable=False, min_unit_bytes=0)
    for name, empty in (("policy", empty_policy), ("critic", empty_value_model)):
        with Peak() as drawing:
            model = empty(path, torch.float32)
            engine = FSDPEngine(model, settings, CPU, mesh_of_all(), DrawnWeights.of(model, SEED))
        sizes = [parameter.numel() * parameter.element_size() for parameter in engine.model.parameters()]
        peaks[name] = drawing.bytes()
    return {**peaks, "whole": sum(sizes), "largest": max(sizes)}


def test_a_rank_has_its_part_and_one_tensor(tmp_path: Path) -> None:
    path = write_config(tmp_path / "model", **WIDE)
    for rank in run_ranks(2, draw, tmp_path / "ranks", path):
        # half the model, a tensor, and what building a model without memory takes
        limit = rank["whole"] / 2 + 2 * rank["largest"]
        assert rank["whole"] / 2 < rank["policy"] < limit < 0.6 * rank["whole"]
        assert rank["critic"] < limit
