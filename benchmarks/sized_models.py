"""Models of a size with random weights, of every family whose memory is measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    Phi3Config,
    PhiConfig,
    PretrainedConfig,
    Qwen2_5_VLConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

_ENDS = {"bos_token_id": 0, "eos_token_id": 1}


def _llama_like(
    kind: Callable[..., PretrainedConfig], hidden: int, layers: int, vocabulary: int, key_heads: int, **more: Any
) -> PretrainedConfig:
    return kind(
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=key_heads,
        vocab_size=vocabulary,
        **_ENDS,
        **more,
    )


def _gpt2(hidden: int, layers: int, vocabulary: int, _key_heads: int) -> PretrainedConfig:
    return GPT2Config(n_embd=hidden, n_layer=layers, n_head=hidden // 64, vocab_size=vocabulary, **_ENDS)


def _experts(hidden: int, *others: int) -> PretrainedConfig:
    """8, of which a token chooses 2."""
    more = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": hidden, "head_dim": 64}
    return _llama_like(Qwen3MoeConfig, hidden, *others, tie_word_embeddings=True, **more)


VISION_START, PICTURE, VISION_END = 2, 3, 4
"""Tokens of models that see."""


def _seeing(hidden: int, layers: int, vocabulary: int, key_heads: int) -> PretrainedConfig:
    """A tower of as many blocks as the decoder has layers, and half its width."""
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [8, 12, 12]}
    decoder = _llama_like(Qwen3Config, hidden, layers, vocabulary, key_heads, rope_parameters=rope, head_dim=64)
    return Qwen2_5_VLConfig(
        text_config={name: value for name, value in decoder.to_dict().items() if name != "model_type"},
        vision_config={
            "depth": layers,
            "hidden_size": hidden // 2,
            "intermediate_size": 3 * hidden // 2,
            "num_heads": hidden // 64,
            "fullatt_block_indexes": [layers - 1],
            "out_hidden_size": hidden,
        },
        vision_start_token_id=VISION_START,
        image_token_id=PICTURE,
        vision_end_token_id=VISION_END,
        video_token_id=VISION_END + 1,
        tie_word_embeddings=True,
    )


_sized = partial(_llama_like, head_dim=64, tie_word_embeddings=True)
FAMILIES: dict[str, Callable[[int, int, int, int], PretrainedConfig]] = {
    "gemma2": partial(_sized, Gemma2Config),
    "gemma3_text": partial(_sized, Gemma3TextConfig),
    "gpt2": _gpt2,
    "llama": partial(_sized, LlamaConfig),
    "phi": partial(_llama_like, PhiConfig),
    "phi3": partial(_llama_like, Phi3Config, pad_token_id=0),
    "qwen2_5_vl": _seeing,
    "qwen3": partial(_sized, Qwen3Config),
    "qwen3_moe": _experts,
}
"""From hidden, layers, vocabulary and key heads."""


def write_model(
    _rank: int,
    hidden: int,
    layers: int,
    vocabulary: int,
    path: Path,
    key_heads: int | None = None,
    family: str = "qwen3",
) -> int:
    """Random weights, from a process that ends; the number of parameters. key_heads: else half of the heads."""
    config = FAMILIES[family](hidden, layers, vocabulary, key_heads or max(1, hidden // 128))
    auto = AutoModelForImageTextToText if family == "qwen2_5_vl" else AutoModelForCausalLM
    model = auto.from_config(config, dtype=torch.float32)
    model.save_pretrained(path)
    if family == "qwen2_5_vl":
        processor = {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 14, "merge_size": 2}
        (path / "preprocessor_config.json").write_text(json.dumps(processor))
    return sum(parameter.numel() for parameter in model.parameters())
