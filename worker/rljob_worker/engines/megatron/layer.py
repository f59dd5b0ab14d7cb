"""One decoder layer: Megatron-core's, called as transformers calls its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer import ModuleSpec, TransformerConfig
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from rljob_worker.engines.attention.varlen import AttentionLayout, Formula


@dataclass(frozen=True, slots=True)
class Seen:
    """What attention knows of a pack. Megatron hands it through in the place of a mask."""

    layout: AttentionLayout
    cosines: torch.Tensor
    """[1, tokens, head_dim], and so are the sines: of the ranks that split matrices together."""
    sines: torch.Tensor


class MegatronLayer(TransformerLayer):  # type: ignore[misc]
    """Takes and gives hidden states [1, own tokens, hidden]."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        *,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        attention_layout: AttentionLayout,
        **_: Any,
    ) -> torch.Tensor:
        seen = Seen(attention_layout, *position_embeddings)
        result, _ = super().forward(hidden_states.transpose(0, 1), attention_mask=seen)
        return result.transpose(0, 1)


class PackedAttention(torch.nn.Module):  # type: ignore[misc]
    """Rotary positions and attention within each row of a pack, of this rank's heads."""

    def __init__(self, formula: Formula, **_: Any) -> None:
        super().__init__()
        self.formula = formula

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, seen: Seen, **_: Any
    ) -> torch.Tensor:
        """[tokens, 1, heads, head_dim] each -> [tokens, 1, heads * head_dim]."""
        query, key, value = (item.permute(1, 2, 0, 3) for item in (query, key, value))
        query, key = apply_rotary_pos_emb(query, key, seen.cosines, seen.sines)
        return seen.layout.attend(query, key, value, self.formula).flatten(2).transpose(0, 1)


class AlternatingColumns(ColumnParallelLinear):  # type: ignore[misc]
    """Gate and up in one matrix, whose rows alternate: a rank's run of them is the same part of both, however many
    ranks there are. Megatron's MLP wants all gates before all ups."""

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        result, bias = super().forward(hidden)
        return result.unflatten(-1, (-1, 2)).mT.flatten(-2), bias


def megatron_layer(
    stock: torch.nn.Module, config: TransformerConfig, groups: ProcessGroupCollection
) -> TransformerLayer:
    """In place of a layer of transformers, whose norms and experts it takes over. Its matrices are to be filled."""
    attention = stock.self_attn
    formula = Formula(attention.scaling, getattr(attention, "sliding_window", None))
    submodules = TransformerLayerSubmodules(
        self_attention=ModuleSpec(
            SelfAttention,
            submodules=SelfAttentionSubmodules(
                linear_qkv=ColumnParallelLinear,
                core_attention=partial(PackedAttention, formula),
                linear_proj=RowParallelLinear,
            ),
        ),
        self_attn_bda=get_bias_dropout_add,
        mlp=IdentityOp if has_experts(stock) else _mlp(config),
        mlp_bda=get_bias_dropout_add,
    )
    layer = MegatronLayer(config, submodules, pg_collection=groups)
    layer.input_layernorm = stock.input_layernorm
    layer.pre_mlp_layernorm = stock.post_attention_layernorm
    layer.self_attention.q_layernorm = getattr(attention, "q_norm", None)
    layer.self_attention.k_layernorm = getattr(attention, "k_norm", None)
    if has_experts(stock):
        layer.mlp = stock.mlp
        layer.mlp.forward = partial(_of_experts, layer.mlp.forward)
    return layer


def has_experts(stock: torch.nn.Module) -> bool:
    return hasattr(stock.mlp, "experts")


def _mlp(config: TransformerConfig) -> ModuleSpec:
    return ModuleSpec(
        MLP,
        params={"ffn_hidden_size": config.ffn_hidden_size},
        submodules=MLPSubmodules(linear_fc1=AlternatingColumns, linear_fc2=RowParallelLinear),
    )


def _of_experts(
    stock: Callable[[torch.Tensor], torch.Tensor], hidden: torch.Tensor, **_: Any
) -> tuple[torch.Tensor, None]:
    """As Megatron calls an MLP and takes what it gives: [own tokens, 1, hidden], and a bias."""
    return stock(hidden.transpose(0, 1)).transpose(0, 1), None
