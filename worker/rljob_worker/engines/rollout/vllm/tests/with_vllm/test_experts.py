"""A mixture of experts, in a process of its own: vLLM keeps for good whether its first model has experts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from transformers import PreTrainedModel, Qwen3MoeConfig

from rljob_api.memory.model_shape import parse_shape
from rljob_api.memory.weight_slices import WeightSlices
from rljob_api.pipeline.meshes import Mesh
from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.engines.models import checkpoint_tensors, random_policy
from rljob_worker.engines.models.policy_by_layers import PolicyByLayers
from rljob_worker.engines.parallel.mesh import build_meshes
from rljob_worker.engines.rollout.slices import Named, own_slices
from rljob_worker.engines.rollout.tests.subjects import CPU, END, write_model
from rljob_worker.engines.rollout.vllm.library import load_start
from rljob_worker.engines.rollout.vllm.settings import VLLMSettings
from rljob_worker.engines.rollout.vllm.weights.reload_check import require_faithful
from rljob_worker.engines.tests.ranks import run_fresh_ranks
from rljob_worker.errors import InvalidJob

LONGEST = 64
SETTINGS = VLLMSettings("float32", max_batch_rows=4, longest_row=LONGEST)


def update_twice(rank: int, path: str, tensor: int) -> list[int]:
    """Versions whose log-probs were those of transformers; so were those it started with, or it would not have."""
    for name in ("all_gather_object", "broadcast_object_list"):  # vLLM's ranks send each other objects when they start
        setattr(dist, name, getattr(distributed_c10d, name))
    mesh = build_meshes([Mesh(tp=tensor)], rank, CPU, deadline_seconds=TEST_TIMEOUT_SECONDS)[Mesh(tp=tensor)]
    settings, policy = replace(SETTINGS, tensor=tensor), PolicyByLayers.random(path, torch.float32, 0)
    engine, result = load_start()(settings, path, policy, (END,), CPU, None, mesh), []
    for version in (1, 2):
        updated = random_policy(path, torch.float32, seed=version)
        engine.load_weights(slices_of_rank(updated, tensor, rank), version)
        require_faithful(engine, updated, "float32", LONGEST)
        result.append(engine.version)
    return result


def slices_of_rank(model: PreTrainedModel, tensor: int, rank: int) -> Iterator[Named]:
    """What a rank of a copy keeps of the tensors of a checkpoint."""
    slices = WeightSlices.of(parse_shape(model.config.to_dict()), tensor)
    return own_slices(checkpoint_tensors(model.named_parameters()), slices, rank)


def start_without_experts_first(rank: int, without: str, experts: str) -> str:
    """What is said of the second."""
    for name in ("all_gather_object", "broadcast_object_list"):
        setattr(dist, name, getattr(distributed_c10d, name))
    start = load_start()
    start(SETTINGS, without, PolicyByLayers.random(without, torch.float32, 0), (END,), CPU)
    with pytest.raises(InvalidJob) as caught:
        start(SETTINGS, experts, PolicyByLayers.random(experts, torch.float32, 0), (END,), CPU)
    return str(caught.value)


def write_experts(directory: Path, *, tied: bool, width: int = 32) -> str:
    """width: of an expert. Kernels of the CPU compute 32 columns at a time, and fill up what is narrower."""
    Qwen3MoeConfig(
        hidden_size=64,
        intermediate_size=96,
        moe_intermediate_size=width,
        num_experts=4,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        vocab_size=96,
        max_position_embeddings=128,
        initializer_range=0.15,
        tie_word_embeddings=tied,
        architectures=["Qwen3MoeForCausalLM"],
    ).save_pretrained(directory)
    return str(directory)


def in_processes(num_ranks: int, work: Any, tmp_path: Path, *arguments: Any) -> list[Any]:
    load_start()  # sets what vLLM reads of the environment, which processes inherit
    preload = ("rljob_worker.engines.rollout.vllm.starting",)
    return run_fresh_ranks(
        num_ranks, work, tmp_path / "ranks", *arguments, preload=preload, deadline_seconds=5 * TEST_TIMEOUT_SECONDS
    )


@pytest.mark.parametrize(("tied", "tensor", "width"), [(True, 1, 32), (False, 1, 32), (True, 2, 64), (False, 2, 48)])
def test_experts_compute_with_the_weights_of_every_update(tmp_path: Path, tied: bool, tensor: int, width: int) -> None:
    path = write_experts(tmp_path / "model", tied=tied, width=width)
    assert in_processes(tensor, update_twice, tmp_path, path, tensor) == [[1, 2]] * tensor


def test_experts_behind_a_model_without_any_are_refused_by_their_name(tmp_path: Path) -> None:
    experts = write_experts(tmp_path / "experts", tied=True)
    (said,) = in_processes(1, start_without_experts_first, tmp_path, write_model(tmp_path / "model"), experts)
    assert said.startswith(f"vLLM refuses '{experts}': it has experts, and the first model of this process had none")
    assert "a worker group of its own" in said
