"""One pipeline stage of a model: some of its layers, and of what is around them what is theirs."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel

from rljob_api.memory.model_shape import pipeline_layers
from rljob_worker.engines.fsdp.tensors.pipeline_stages import StageTensor
from rljob_worker.engines.models import ValueModel
from rljob_worker.engines.parallel.split import Split
from rljob_worker.errors import InvalidJob


class AbsentLayer(torch.nn.Module):  # type: ignore[misc]
    """A layer that another pipeline stage has."""

    def forward(self, hidden_states: torch.Tensor, **_: Any) -> torch.Tensor:
        return hidden_states


def tensors_by_pipeline_stage(
    model: torch.nn.Module, layers: str, num_stages: int, split: Split
) -> dict[str, StageTensor]:
    """By parameter of a whole model: its shape, and the pipeline stage that holds it. layers: what they are called."""
    count = len(model.get_submodule(layers))
    of_layer = {index: stage for stage in range(num_stages) for index in pipeline_layers(stage, num_stages, count)}

    def stage_of(name: str) -> int:
        rest = name.removeprefix(f"{layers}.")
        if rest != name:
            return of_layer[int(rest.partition(".")[0])]
        return 0 if ".embed_tokens." in f".{name}" else num_stages - 1

    shares = ((name, parameter.shape, split.share(name)) for name, parameter in model.named_parameters())
    return {
        name: StageTensor(tuple(shape) if share is None else share.shape(shape), stage_of(name))
        for name, shape, share in shares
    }


def shared_by_end_stages(model: torch.nn.Module) -> tuple[str, ...]:
    """What the first stage and the last both have: an embedding that is the last layer as well."""
    if isinstance(model, ValueModel):
        return ()
    last = model.get_output_embeddings().weight
    embedding = model.get_input_embeddings().weight
    return tuple(name for name, item in model.named_parameters() if item is last and item is embedding)


def keep_pipeline_stage(model: torch.nn.Module, layers: torch.nn.ModuleList, stage: int, num_stages: int) -> None:
    """Leave a model the layers of one stage, with their names, the embedding on the first and what comes behind the
    layers on the last. On all others it gives hidden states. An embedding that is the last layer is on both, under one
    name; the last stage, which is given hidden states, asks it only for the number of tokens."""
    base: PreTrainedModel = model.backbone if isinstance(model, ValueModel) else model.base_model
    _require_pipeline_stages(len(layers), num_stages)
    is_tied = bool(shared_by_end_stages(model))
    mine = pipeline_layers(stage, num_stages, len(layers))
    for index in set(range(len(layers))) - set(mine):
        layers[index] = AbsentLayer()
    if stage > 0 and not (is_tied and stage == num_stages - 1):
        base.embed_tokens = torch.nn.Identity()
    if stage < num_stages - 1:
        base.norm = torch.nn.Identity()
        setattr(model, "value_head" if isinstance(model, ValueModel) else "lm_head", torch.nn.Identity())
        model.forward = partial(_hidden_states, base)


def _hidden_states(base: PreTrainedModel, **inputs: Any) -> torch.Tensor:
    last_hidden_state: torch.Tensor = base(**inputs).last_hidden_state
    return last_hidden_state


def _require_pipeline_stages(num_layers: int, num_stages: int) -> None:
    if num_stages > num_layers:
        raise InvalidJob(
            f"training.parallelism.pipeline: {num_stages} stages of {num_layers} layers would leave some without any; "
            f"write at most {num_layers}"
        )
