"""Two ranks of a copy that are given their slices, of models whose matrices are cut otherwise than those of Qwen3."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from transformers import LlamaConfig, Phi3Config, PretrainedConfig

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
)
from rljob_worker.engines.rollout.vllm.weights.reload_check import require_faithful

SIZES = {
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 96,
    "max_position_embeddings": 128,
    "initializer_range": 0.15,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
}
FUSED = Phi3Config(**SIZES, hidden_size=128, num_key_value_heads=2, architectures=["Phi3ForCausalLM"])
ONE_KEY_HEAD = LlamaConfig(
    **SIZES,
    hidden_size=64,
    head_dim=32,
    num_key_value_heads=1,
    attention_bias=True,
    mlp_bias=True,
    architectures=["LlamaForCausalLM"],
)


def update(rank: int, path: str) -> int:
    """The version whose log-probs are those of transformers; so were those it started with, or it would not have."""
    for name in ("all_gather_object", "broadcast_object_list"):  # vLLM's ranks send each other objects when they start
        setattr(dist, name, getattr(distributed_c10d, name))
    pair = Mesh(tp=2)
    mesh = build_meshes([pair], rank, CPU, deadline_seconds=TEST_TIMEOUT_SECONDS)[pair]
    policy = PolicyByLayers.random(path, torch.float32, 0)
    engine = load_start()(replace(SETTINGS, tensor=2), path, policy, (END,), CPU, None, mesh)
    updated = random_policy(path, torch.float32, seed=1)
    engine.load_weights(slices_of_rank(updated, 2, rank), 1)
    require_faithful(engine, updated, "float32", LONGEST)
    return engine.version


@pytest.mark.parametrize("config", [FUSED, ONE_KEY_HEAD], ids=["fused", "one key head and biases"])
def test_slices_are_what_the_library_computes_with(tmp_path: Path, config: PretrainedConfig) -> None:
    config.save_pretrained(tmp_path / "model")
    assert in_processes(2, update, tmp_path, str(tmp_path / "model")) == [1, 1]
