"""The repeated layers of a model."""

from __future__ import annotations

import torch

from rljob_worker.engines.models.vision import decoder_of


def decoder_layers(model: torch.nn.Module) -> torch.nn.ModuleList:
    """The ModuleList with the most parameters, which is not the vision tower's; an empty one where there is none."""
    lists = [
        module for module in decoder_of(model).modules() if isinstance(module, torch.nn.ModuleList) and len(module)
    ]
    return max(lists, key=lambda item: sum(p.numel() for p in item.parameters()), default=torch.nn.ModuleList())
