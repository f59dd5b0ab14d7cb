"""Tiny models, batches and objectives for engine tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    PhiConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from rljob_api.pipeline.meshes import Mesh
from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.algorithms.metric_accumulator import Measured, MetricAccumulator
from rljob_worker.batch import Batch, Column
from rljob_worker.engines.fsdp import FSDPEngine
from rljob_worker.engines.fsdp.checkpoint.shard_index import merge_indexes
from rljob_worker.engines.fsdp.export.directory import export_directory
from rljob_worker.engines.models import ValueModel, WeightFiles, empty_policy, empty_value_model
from rljob_worker.engines.parallel.mesh import ProcessMesh, alone, build_meshes
from rljob_worker.engines.protocols import TokenBatch

VOCABULARY = 48
END = 1

WINDOW = 6
"""Tokens that sliding layers see."""

CONFIGS: dict[str, Callable[..., PretrainedConfig]] = {
    "qwen2": lambda **more: Qwen2Config(**_llama_like(), **more),
    "qwen3": lambda **more: Qwen3Config(**{**_llama_like(), "head_dim": 8, **more}),
    "qwen3_moe": lambda **more: Qwen3MoeConfig(
        **{**_llama_like(), "head_dim": 8, "moe_intermediate_size": 16, **_EXPERTS, **more}
    ),
    "llama": lambda **more: LlamaConfig(**_llama_like(), **more),
    "mistral": lambda **more: MistralConfig(**_llama_like(), sliding_window=WINDOW, **more),
    # caps low enough for tiny models to come near them; the first layer slides, the second does not
    "gemma2": lambda **more: Gemma2Config(
        **_llama_like(),
        **_gemma_like(),
        **{"attn_logit_softcapping": 0.05, "final_logit_softcapping": 0.1, **more},
    ),
    "gemma3_text": lambda **more: Gemma3TextConfig(**_llama_like(), **_gemma_like(), **more),
    "phi": lambda **more: PhiConfig(**_llama_like(), partial_rotary_factor=0.5, **more),
    "phi3": lambda **more: Phi3Config(**_llama_like(), pad_token_id=0, sliding_window=WINDOW, **more),
    "gpt2": lambda **more: GPT2Config(
        n_embd=32, n_layer=2, n_head=4, vocab_size=VOCABULARY, n_positions=128, bos_token_id=0, eos_token_id=END, **more
    ),
}


_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "norm_topk_prob": True}


def _llama_like() -> dict[str, Any]:
    return {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 256,
        "bos_token_id": 0,
        "eos_token_id": END,
    }


def _gemma_like() -> dict[str, Any]:
    layers = ["sliding_attention", "full_attention"]
    return {"head_dim": 8, "query_pre_attn_scalar": 16, "sliding_window": WINDOW, "layer_types": layers}


def write_config(directory: Path, kind: str = "qwen3", **more: Any) -> str:
    """A model directory without weights, for random models."""
    CONFIGS[kind](**more).save_pretrained(directory)
    return str(directory)


def write_model(directory: Path, kind: str = "qwen3", seed: int = 0, *, draws_biases: bool = False, **more: Any) -> str:
    """A model directory with random weights, as transformers writes it; biases are 0 unless they are drawn, too."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(CONFIGS[kind](**more), dtype=torch.float32)
    if draws_biases:
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(directory)
    return str(directory)


def a_batch(response_lengths: list[int], *, group_size: int = 2, longest_prompt: int = 7, seed: int = 0) -> Batch:
    """Rows with random tokens and advantages; the rows of a group share a prompt."""
    rng = np.random.default_rng(seed)
    rows = np.arange(len(response_lengths))
    of_group = [_tokens(rng, int(rng.integers(1, longest_prompt + 1))) for _ in range(len(rows) // group_size + 1)]
    prompts = Column.ragged([of_group[row // group_size] for row in rows])
    responses = Column.ragged([_tokens(rng, length) for length in response_lengths])
    advantages = rng.normal(size=len(responses.values))
    columns = {
        "prompt_ids": prompts,
        "response_ids": responses,
        "advantages": Column.from_lengths(advantages, response_lengths),
        "weight": Column.fixed(rng.uniform(0.5, 1.5, len(rows))),
    }
    return Batch.build(rows, rows // group_size, columns, prompts.lengths + responses.lengths)


def _tokens(rng: np.random.Generator, length: int) -> np.ndarray:
    return rng.integers(2, VOCABULARY, length)


def routed(batch: Batch) -> Batch:
    """With routes in two layers that nobody would choose: alike in the rows of a group, as prompts are."""
    draw = np.random.default_rng(1)

    def routes(length: int) -> np.ndarray:
        """Two of six experts."""
        return draw.random((length, 2, 6)).argsort(-1)[..., :2].astype(np.uint8)

    prompts = {
        int(group): routes(int(length))
        for group, length in zip(batch.group_ids, batch.lengths("prompt_ids"), strict=True)
    }
    of_prompts = np.concatenate([prompts[int(group)] for group in batch.group_ids])
    lengths = batch.lengths("response_ids")
    return batch.with_columns(
        {
            "prompt_routed_experts": Column.from_lengths(of_prompts, batch.lengths("prompt_ids")),
            "routed_experts": Column.from_lengths(routes(int(lengths.sum())), lengths),
        }
    )


class PolicyGradient:
    """-sum(weight * advantage * log_prob) / tokens - 0.01 * sum(entropy) / rows: a per-token and a per-row column, two
    denominators, two outputs."""

    columns = ("advantages", "weight")
    mask = None
    outputs = frozenset({"log_probs", "entropy"})

    def counts(self, batch: Batch) -> dict[str, float]:
        return {"tokens": float(batch["response_ids"].lengths.sum()), "rows": float(len(batch))}

    def __call__(self, tokens: TokenBatch, counts: dict[str, float]) -> tuple[torch.Tensor, Measured]:
        assert tokens.entropy is not None
        weights = tokens.columns["weight"][tokens.row] * tokens.columns["advantages"]
        loss = -(weights * tokens.log_probs).sum() / counts["tokens"] - 0.01 * tokens.entropy.sum() / counts["rows"]
        totals = MetricAccumulator()
        totals.mean_of("entropy", tokens.entropy)
        return loss, totals.measured()


class Distillation:
    """Mean over tokens of the divergence from the reference's distributions."""

    columns = ()
    mask = None
    outputs = frozenset({"log_probs", "full_kl"})

    def counts(self, batch: Batch) -> dict[str, float]:
        return {"tokens": float(batch["response_ids"].lengths.sum())}

    def __call__(self, tokens: TokenBatch, counts: dict[str, float]) -> tuple[torch.Tensor, Measured]:
        assert tokens.full_kl is not None
        return tokens.full_kl.sum() / counts["tokens"], Measured()


class ValueRegression:
    """Half the mean squared distance of values to the column `advantages`."""

    columns = ("advantages",)
    mask = None
    outputs = frozenset({"values"})

    def counts(self, batch: Batch) -> dict[str, float]:
        return {"tokens": float(batch["response_ids"].lengths.sum())}

    def __call__(self, tokens: TokenBatch, counts: dict[str, float]) -> tuple[torch.Tensor, Measured]:
        assert tokens.values is not None
        return 0.5 * (tokens.values - tokens.columns["advantages"]).square().sum() / counts["tokens"], Measured()


def some_slow(cases: Iterable[Any], *kept: Any) -> list[Any]:
    """Parameters of a test, of which those that are not named run in the slow tier: what would break them breaks one of
    the others, too."""
    return [case if case in kept else _slow(case) for case in cases]


def _slow(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)


def wait_for_all(engine: FSDPEngine) -> None:
    if engine.parts.everyone is not None:
        dist.barrier(engine.parts.everyone)


def save(engine: FSDPEngine, directory: Path) -> None:
    """A checkpoint of the engine, all ranks of which call this."""
    engine.copy_shards().write(directory)
    wait_for_all(engine)
    if engine.parts.rank == 0:
        merge_indexes(directory)
    wait_for_all(engine)


def export_of(engine: FSDPEngine, directory: Path, *, checkpoint: Path | None = None, **sizes: int) -> None:
    """A model directory of what the engine has trained, all ranks of which call this. checkpoint: one of the engine;
    else it is written first."""
    if checkpoint is None:
        checkpoint = directory.with_name(f"{directory.name}-checkpoint")
        save(engine, checkpoint)
    if engine.parts.rank == 0:
        path, adapter = str(engine.model.config.name_or_path), engine.adapter
        empty = empty_value_model if isinstance(engine.model, ValueModel) else empty_policy
        export_directory(
            empty(path, engine.settings.dtype),
            checkpoint,
            directory,
            engine.settings.dtype,
            adapter=adapter,
            base=None if adapter is None else WeightFiles.find(path),
            layers=engine.layers,
            **sizes,
        )
    wait_for_all(engine)


def mesh_of_all() -> ProcessMesh:
    """Data parallelism over the world of this process, if it has one."""
    return mesh_here(Mesh(dp=dist.get_world_size() if dist.is_initialized() else 1))


def mesh_here(mesh: Mesh) -> ProcessMesh:
    """As this rank of the world sees it, or a process without one."""
    device = torch.device("cpu")
    if not dist.is_initialized():
        return alone(device)
    return build_meshes([mesh], dist.get_rank(), device, deadline_seconds=TEST_TIMEOUT_SECONDS)[mesh]
