"""What vLLM's reload leaves as it was on the CPU, where layers compute with their weights in layouts of their own."""

from __future__ import annotations

import torch
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding


def forget_expert_kernels(model: torch.nn.Module) -> None:
    """Before a reload: have experts' weights packed anew.

    vLLM packs them when it makes their kernel and takes a kernel that is there for a sign that they are packed; a
    reload then writes plain weights where packed ones are read. On devices, whose kernels read them as they are and may
    be part of recorded graphs, kernels stay.
    """
    for layer in model.modules():
        method = getattr(layer, "quant_method", None)
        if isinstance(method, UnquantizedFusedMoEMethod) and layer.w13_weight.device.type == "cpu":
            method.moe_kernel = None


def refresh_tied(model: torch.nn.Module) -> None:
    """After a reload: make the last layer anew where it is the embedding.

    Weights come under the embedding's name alone, so a reload makes the embedding's copy and keeps the last layer's old
    one.
    """
    modules = list(model.modules())
    embeddings = {
        module.weight.data_ptr()
        for module in modules
        if isinstance(module, VocabParallelEmbedding) and not isinstance(module, ParallelLMHead)
    }
    for layer in modules:
        if isinstance(layer, ParallelLMHead) and layer.weight.data_ptr() in embeddings:
            layer.quant_method.process_weights_after_loading(layer)
