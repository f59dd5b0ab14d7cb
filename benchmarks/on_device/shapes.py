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

SIZES: Mapping[str, dict[str, int | bool]] = {
    "210M": {
        "hidden_size": 768,
        "intermediate_size": 2304,
        "num_hidden_layers": 14,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "vocab_size": 151_936,
        "tie_word_embeddings": True,
    },
    "0.6B": {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151_936,
        "tie_word_embeddings": True,
    },
    "1.7B": {
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151_936,
        "tie_word_embeddings": True,
    },
    "8B": {
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151_936,
        "tie_word_embeddings": False,
    },
    "tiny": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": 64,
        "tie_word_embeddings": True,
    },
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
