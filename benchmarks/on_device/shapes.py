"""Models of the sizes that people train, with random weights, and what their sums cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import Qwen3Config

from rljob_api.memory.model_shape import ModelShape, parse_shape
from rljob_worker.engines.models import empty_policy, give_memory
from rljob_worker.engines.parallel.shards import local_part

END = 1
_SPREAD = 0.02
"""Standard deviation of random weights."""


def _qwen3(
    width: int, mlp: int, layers: int, heads: int, key_heads: int, head_dim: int, *, words: int = 151_936, tied: bool
) -> dict[str, int | bool]:
    return {
        "hidden_size": width,
        "intermediate_size": mlp,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "head_dim": head_dim,
        "vocab_size": words,
        "tie_word_embeddings": tied,
    }


SIZES: Mapping[str, dict[str, int | bool]] = {
    "210M": _qwen3(768, 2304, 14, 12, 4, 64, tied=True),
    "0.6B": _qwen3(1024, 3072, 28, 16, 8, 128, tied=True),
    "1.7B": _qwen3(2048, 6144, 28, 16, 8, 128, tied=True),
    "8B": _qwen3(4096, 12_288, 36, 32, 8, 128, tied=False),
    "tiny": _qwen3(32, 64, 2, 4, 2, 8, words=64, tied=True),
}
"""Qwen3's, a small one with as many words, and one to rehearse with."""


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """One of the sizes, as a directory without weights."""

    name: str
    path: str

    @staticmethod
    def write(name: str, folder: Path) -> DeviceModel:
        path = folder / name
        Qwen3Config(**SIZES[name], max_position_embeddings=40_960, eos_token_id=END).save_pretrained(path)
        return DeviceModel(name, str(path))

    @property
    def shape(self) -> ModelShape:
        result = parse_shape({"model_type": "qwen3", **SIZES[self.name]})
        assert result is not None
        return result

    def policy(self, dtype: torch.dtype, device: torch.device) -> torch.nn.Module:
        """Whole, with random weights."""
        model = empty_policy(self.path, dtype)
        give_memory(model, device)
        draw(model)
        return model


def draw(model: torch.nn.Module) -> None:
    """Random weights, drawn where they are: matrices from a normal distribution, norms 1."""
    with torch.no_grad():
        for parameter in model.parameters():
            local = local_part(parameter)
            local.fill_(1) if parameter.dim() == 1 else local.normal_(0, _SPREAD)


def update_flops(shape: ModelShape, tokens: int, responses: int, context: float) -> float:
    """Floating-point operations of one update: for each token 6 for every weight of the layers and, per layer, 12 x
    width of the queries for every token it attends to, `context` on average; for each response token 6 for every weight
    of the last layer. What is computed again counts nothing. (Chowdhery et al., PaLM, https://arxiv.org/abs/2204.02311,
    appendix B.)"""
    layers = shape.layers * (6 * shape.layer + 12 * shape.query_width * context)
    return tokens * layers + responses * 6 * shape.embedding
