"""What vLLM's reload leaves as it was."""

from __future__ import annotations

import torch
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding


def refresh_tied(model: torch.nn.Module) -> None:
    """Make the last layer anew where it is the embedding.

    On the CPU a layer computes with a copy of its weights in another layout, made after they have been loaded. Weights
    come under the embedding's name alone, so a reload makes the embedding's copy and keeps the last layer's old one.
    """
    modules = list(model.modules())
    embeddings = {
        each.weight.data_ptr()
        for each in modules
        if isinstance(each, VocabParallelEmbedding) and not isinstance(each, ParallelLMHead)
    }
    for layer in modules:
        if isinstance(layer, ParallelLMHead) and layer.weight.data_ptr() in embeddings:
            layer.quant_method.process_weights_after_loading(layer)
