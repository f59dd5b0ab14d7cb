"""Attention heads of a config of any model family; of a model that sees those of its decoder. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def key_heads(config: PretrainedConfig) -> int:
    """Heads of keys and values."""
    config = config.get_text_config()
    return int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)


def head_dim(config: PretrainedConfig) -> int:
    """Width of one attention head."""
    config = config.get_text_config()
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
