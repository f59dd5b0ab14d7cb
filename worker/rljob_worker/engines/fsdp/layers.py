"""Libraries that compute the decoder layers of a model, and how a rank gets its part of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from rljob_worker.engines.fsdp.tensors.parts import Parts
from rljob_worker.engines.fsdp.tensors.pipeline_stages import PipelineStages
from rljob_worker.engines.models import TensorPartsOf, decoder_layers, parts_of
from rljob_worker.engines.parallel.expert import spread_experts
from rljob_worker.engines.parallel.tensor import split_layers


@dataclass(frozen=True, slots=True)
class Spread:
    """A model of which a rank has its part."""

    experts: Sequence[torch.nn.Module] = ()
    """The modules that have experts of each layer, where ranks share those out."""
    parts_of: TensorPartsOf = parts_of
    """What checkpoints call the parameters."""
    pipeline_stages: PipelineStages | None = None
    """Which pipeline stage has which layers, where each rank has some of them."""


class Layers(Protocol):
    """One way to compute decoder layers."""

    def spread(self, model: torch.nn.Module, parts: Parts) -> Spread:
        """Leave this rank its part of a model, with memory or without."""
        ...


class TransformersLayers:
    """As transformers computes them; their tensor_group and experts are split by `parallel.tensor`,
    `parallel.expert`."""

    def spread(self, model: torch.nn.Module, parts: Parts) -> Spread:
        if parts.tensor_group is not None:
            split_layers(decoder_layers(model), parts.tensor_group)
        return Spread(spread_experts(model, parts.experts) if parts.experts is not None else ())


TRANSFORMERS = TransformersLayers()
