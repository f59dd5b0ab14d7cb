"""Later policies are copied into an engine whose layers have their weights as they come, as those of devices do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from transformers import PretrainedConfig, Qwen3Config

from rljob_api.pipeline.meshes import Mesh
from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.engines.models import random_policy
from rljob_worker.engines.models.policy_by_layers import PolicyByLayers
from rljob_worker.engines.parallel.mesh import build_meshes
from rljob_worker.engines.rollout.tests.subjects import CPU, END
from rljob_worker.engines.rollout.vllm.library import load_start
from rljob_worker.engines.rollout.vllm.tests.with_vllm.test_experts import (
    LONGEST,
    SETTINGS,
    in_processes,
    slices_of_rank,
    write_experts,
)
from rljob_worker.engines.rollout.vllm.tests.with_vllm.test_slices import FUSED, ONE_KEY_HEAD, SIZES
from rljob_worker.engines.rollout.vllm.weights.reload_check import require_faithful

FILLED_UP = Qwen3Config(
    **SIZES | {"vocab_size": 98, "tie_word_embeddings": True},
    hidden_size=64,
    head_dim=32,
    num_key_value_heads=2,
    architectures=["Qwen3ForCausalLM"],
)
"""Rows of 98 words are filled up to 128."""


def keep_weights_plain() -> None:
    """On a CPU layers pack their weights."""
    from vllm.model_executor.layers import utils
    from vllm.model_executor.layers.fused_moe.experts import cpu_moe

    def multiply_plain(layer: torch.nn.Module, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    utils.dispatch_cpu_unquantized_gemm = multiply_plain
    cpu_moe.cpu_prepack_moe_weight = lambda weight, isa: weight


def started(rank: int, path: str, tensor: int) -> Any:
    for name in ("all_gather_object", "broadcast_object_list"):  # vLLM's ranks send each other objects when they start
        setattr(dist, name, getattr(distributed_c10d, name))
    keep_weights_plain()
    mesh = build_meshes([Mesh(tp=tensor)], rank, CPU, deadline_seconds=TEST_TIMEOUT_SECONDS)[Mesh(tp=tensor)]
    policy = PolicyByLayers.random(path, torch.float32, 0)
    return load_start()(replace(SETTINGS, tensor=tensor), path, policy, (END,), CPU, None, mesh)


def update(rank: int, path: str, tensor: int) -> list[int]:
    """Two versions, of which the second lasts, that were copied and are what is computed with."""
    engine, result = started(rank, path, tensor), []
    assert engine.weights.copies is not None
    for version in (1, 2):
        policy = random_policy(path, torch.float32, seed=version)
        engine.load_weights(slices_of_rank(policy, tensor, rank), version, lasting=version == 2)
        require_faithful(engine, policy, "float32", LONGEST)
        result.append(engine.version)
    return result


@pytest.mark.parametrize(
    ("config", "tensor"),
    [(FILLED_UP, 1), (FILLED_UP, 2), (FUSED, 2), (ONE_KEY_HEAD, 2)],
    ids=["filled up", "filled up, two ranks", "fused", "one key head and biases"],
)
def test_later_policies_are_copied_past_the_loaders(tmp_path: Path, config: PretrainedConfig, tensor: int) -> None:
    config.save_pretrained(tmp_path / "model")
    result = in_processes(tensor, update, tmp_path, str(tmp_path / "model"), tensor)
    assert result == [[1, 2]] * tensor


def update_experts(rank: int, path: str, tensor: int) -> bool:
    """Whether a policy that is copied gives every parameter what vLLM's loaders give it."""
    from rljob_worker.engines.rollout.vllm import starting

    starting.require_near = lambda *arguments: None  # kernels of a CPU read other weights than plain ones
    engine = started(rank, path, tensor)
    parameters = [target for places in engine.weights.copies.targets.values() for target, _ in places]
    policy = random_policy(path, torch.float32, seed=1)
    engine.load_weights(slices_of_rank(policy, tensor, rank), 1)
    copied = [item.clone() for item in parameters]
    for item in parameters:
        item.zero_()
    engine.weights.copies = None
    engine.load_weights(slices_of_rank(policy, tensor, rank), 2)
    return all(map(torch.equal, copied, parameters))


@pytest.mark.parametrize("tensor", [1, 2])
def test_experts_get_by_copies_what_loaders_give_them(tmp_path: Path, tensor: int) -> None:
    path = write_experts(tmp_path / "model", tied=False, width=64)
    assert in_processes(tensor, update_experts, tmp_path, path, tensor) == [True] * tensor
