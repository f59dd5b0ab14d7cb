"""What a plan knows of a vision tower, against the models of transformers."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import (
    PretrainedConfig,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
)

from rljob_api.memory.model_shape import parse_shape

ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 6, 6]}
TEXT: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rope_parameters": ROPE,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "decoder_sparse_step": 1}
TOWER: dict[str, Any] = {"depth": 3, "hidden_size": 64, "intermediate_size": 96, "num_heads": 4, "out_hidden_size": 128}
LEVELS = {"deepstack_visual_indexes": [0, 1], "num_position_embeddings": 64}

CASES: dict[str, tuple[type[Any], PretrainedConfig]] = {
    "qwen2_5_vl": (
        Qwen2_5_VLForConditionalGeneration,
        Qwen2_5_VLConfig(text_config=TEXT, vision_config=TOWER | {"fullatt_block_indexes": [1]}),
    ),
    "qwen3_vl": (
        Qwen3VLForConditionalGeneration,
        Qwen3VLConfig(text_config=TEXT, vision_config=TOWER | LEVELS, tie_word_embeddings=False),
    ),
    "qwen3_vl_moe": (
        Qwen3VLMoeForConditionalGeneration,
        Qwen3VLMoeConfig(text_config=TEXT | EXPERTS, vision_config=TOWER | LEVELS, tie_word_embeddings=False),
    ),
}


@pytest.mark.parametrize("model_type", CASES)
def test_parameters_of_tower_and_decoder_are_those_of_transformers(model_type: str) -> None:
    kind, config = CASES[model_type]
    model = kind(config)
    tower = sum(weight.numel() for weight in model.model.visual.parameters())
    shape = parse_shape(config.to_dict())
    assert shape is not None and shape.vision is not None
    assert shape.vision.parameters == tower
    assert shape.parameters == sum(weight.numel() for weight in model.parameters()) - tower
