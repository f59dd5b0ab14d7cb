"""Megatron-core's layers in a model of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import layers as linear
from megatron.core.tensor_parallel import mappings

from rljob_worker.engines.fsdp.layers import Spread
from rljob_worker.engines.fsdp.tensors.parts import Parts
from rljob_worker.engines.fsdp.tensors.pipeline_stages import PipelineStages
from rljob_worker.engines.megatron.config import transformer_config
from rljob_worker.engines.megatron.families import require_family
from rljob_worker.engines.megatron.layer import megatron_layer
from rljob_worker.engines.megatron.names import MegatronNames
from rljob_worker.engines.megatron.pipeline_stage import (
    keep_pipeline_stage,
    shared_by_end_stages,
    tensors_by_pipeline_stage,
)
from rljob_worker.engines.models import decoder_layers
from rljob_worker.engines.models.memory import parameters_without_memory
from rljob_worker.engines.parallel.expert import experts_of, spread_experts
from rljob_worker.engines.parallel.mesh import single_rank_group
from rljob_worker.engines.parallel.split import Split

# it wants one connection to a device for all its streams, which would make FSDP's collectives wait for each other
linear.linear_with_grad_accumulation_and_async_allreduce.warned = True
for module in (linear, mappings):  # it calls them by names that torch gives up
    module.dist_all_gather_func, module.dist_reduce_scatter_func = dist.all_gather_single, dist.reduce_scatter_single


class MegatronLayers:
    """`fsdp.layers.Layers`: tensor_group are split by Megatron-core, tokens outside of them as we split them.
    Experts stay transformers', whose kernels need none that is built apart, and are spread by `parallel.expert`."""

    def spread(self, model: torch.nn.Module, parts: Parts) -> Spread:
        config = model.config
        require_family(config)
        layers, prefix = _layers_of(model)
        stock = layers[0]
        names = MegatronNames.of(config, stock.self_attn.head_dim)
        split = parts.split
        megatron_config = transformer_config(config, stock, split.tensor_group[1])
        groups = ProcessGroupCollection(tp=parts.tensor_group or single_rank_group(), cp=None, pp=None)
        if megatron_config.sequence_parallel:
            _require_buffer()
        for index, stock in enumerate(layers):
            is_empty = stock.self_attn.q_proj.weight.is_meta
            with parameters_without_memory() if is_empty else nullcontext():
                layers[index] = megatron_layer(stock, megatron_config, groups)
            if not is_empty:
                sources = {f"{prefix}.{index}.{name}": item for name, item in stock.named_parameters()}
                _fill(layers[index], f"{prefix}.{index}", sources, names, split)
        if parts.experts is not None:
            spread_experts(model, parts.experts)
        stages = None
        if (pipeline := parts.pipeline) is not None:
            held = tensors_by_pipeline_stage(model, prefix, pipeline.size(), split)
            stages = PipelineStages(pipeline, held, shared_by_end_stages(model))
            keep_pipeline_stage(model, layers, pipeline.rank(), pipeline.size())
        experts = experts_of(model) if parts.experts is not None else ()  # of the layers that are left
        return Spread(experts, names.parts_of, stages)


def _layers_of(model: torch.nn.Module) -> tuple[torch.nn.ModuleList, str]:
    """And what they are called in the model."""
    layers = decoder_layers(model)
    return layers, next(name for name, module in model.named_modules() if module is layers)


def _require_buffer() -> None:
    """Megatron gathers tokens into memory that all its layers share."""
    try:
        parallel_state.get_global_memory_buffer()
    except AssertionError:
        parallel_state._set_global_memory_buffer()


def _fill(
    layer: torch.nn.Module, name: str, sources: Mapping[str, torch.Tensor], names: MegatronNames, split: Split
) -> None:
    """From the tensors of the layer in whose place it is, except those that it took over."""
    taken_over = set(map(id, sources.values()))
    with torch.no_grad():
        for own, parameter in layer.named_parameters(prefix=name):
            for part in names.parts_of(own, parameter, split) if id(parameter) not in taken_over else ():
                part.read(sources[part.name])
