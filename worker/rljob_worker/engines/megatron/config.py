"""The configuration that Megatron-core gets for a model."""

from __future__ import annotations

import torch
from megatron.core.transformer import TransformerConfig
from transformers import PretrainedConfig
from transformers.activations import ACT2FN


def transformer_config(config: PretrainedConfig, stock: torch.nn.Module, num_ranks: int) -> TransformerConfig:
    """stock: one of the layers, as transformers makes them; num_ranks: that split its matrices. Weights come from
    elsewhere, pipeline stages and context parallelism are not Megatron's business, and no dropout is applied."""
    attention = stock.self_attn
    return TransformerConfig(
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        ffn_hidden_size=config.intermediate_size,
        num_attention_heads=config.num_attention_heads,
        num_query_groups=config.num_key_value_heads,
        kv_channels=attention.head_dim,
        add_bias_linear=False,
        add_qkv_bias=attention.q_proj.bias is not None,
        gated_linear_unit=True,
        activation_func=ACT2FN[config.hidden_act],
        hidden_dropout=0.0,
        attention_dropout=0.0,
        params_dtype=attention.q_proj.weight.dtype,
        tensor_model_parallel_size=num_ranks,
        sequence_parallel=num_ranks > 1,
        use_cpu_initialization=True,  # or it would ask for a device: where memory is made is the engine's to say
        perform_initialization=False,
        cuda_graph_scope=[],  # its default warns that it is deprecated
    )
