"""A mixture of experts, in a process of its own: vLLM keeps for good whether its first model has experts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from transformers import Qwen3MoeConfig

from rljob_worker.engines.models import checkpoint_tensors, random_policy
from rljob_worker.engines.rollout.tests.subjects import CPU, END, write_model
from rljob_worker.engines.rollout.vllm.library import load_start
from rljob_worker.engines.rollout.vllm.reload_check import require_faithful
from rljob_worker.engines.rollout.vllm.settings import VLLMSettings
from rljob_worker.engines.tests.builders import run_ranks
from rljob_worker.errors import InvalidJob

LONGEST = 64
SETTINGS = VLLMSettings("float32", max_batch_rows=4, longest_row=LONGEST)


def update_twice(rank: int, path: str) -> list[int]:
    """Versions whose log-probs were those of transformers; so were those it started with, or it would not have."""
    for name in ("all_gather_object", "broadcast_object_list"):  # vLLM's ranks send each other objects when they start
        setattr(dist, name, getattr(distributed_c10d, name))
    engine, found = load_start()(SETTINGS, path, random_policy(path, torch.float32, 0), (END,), CPU), []
    for version in (1, 2):
        policy = random_policy(path, torch.float32, seed=version)
        engine.load_weights(checkpoint_tensors(policy.named_parameters()), version)
        require_faithful(engine, policy, "float32", LONGEST)
        found.append(engine.version)
    return found


def start_without_experts_first(rank: int, without: str, experts: str) -> str:
    """What is said of the second."""
    for name in ("all_gather_object", "broadcast_object_list"):
        setattr(dist, name, getattr(distributed_c10d, name))
    start = load_start()
    start(SETTINGS, without, random_policy(without, torch.float32, 0), (END,), CPU)
    with pytest.raises(InvalidJob) as caught:
        start(SETTINGS, experts, random_policy(experts, torch.float32, 0), (END,), CPU)
    return str(caught.value)


def write_experts(directory: Path, *, tied: bool) -> str:
    Qwen3MoeConfig(
        hidden_size=64,
        intermediate_size=96,
        moe_intermediate_size=32,
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


def in_a_process(work: Any, tmp_path: Path, *paths: str) -> Any:
    load_start()  # sets what vLLM reads of the environment, which the process inherits
    preload = ("rljob_worker.engines.rollout.vllm.starting",)
    (found,) = run_ranks(1, work, tmp_path / "ranks", *paths, preload=preload, deadline_seconds=300)
    return found


@pytest.mark.parametrize("tied", [True, False])
def test_experts_compute_with_the_weights_of_every_update(tmp_path: Path, tied: bool) -> None:
    assert in_a_process(update_twice, tmp_path, write_experts(tmp_path / "model", tied=tied)) == [1, 2]


def test_experts_behind_a_model_without_any_are_refused_by_their_name(tmp_path: Path) -> None:
    experts = write_experts(tmp_path / "experts", tied=True)
    said = in_a_process(start_without_experts_first, tmp_path, write_model(tmp_path / "model"), experts)
    assert said.startswith(f"vLLM refuses '{experts}': it has experts, and the first model of this process had none")
    assert "a worker group of its own" in said
