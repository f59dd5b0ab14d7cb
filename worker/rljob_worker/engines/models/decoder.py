"""The repeated layers of a model."""

from __future__ import annotations

import torch


def decoder_layers(model: torch.nn.Module) -> torch.nn.ModuleList:
    """The ModuleList with the most parameters; an empty one where there is none."""
    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList) and len(module)]
    return max(lists, key=lambda item: sum(p.numel() for p in item.parameters()), default=torch.nn.ModuleList())
