"""Models of a plan, before their weights are read, and who computes their layers."""

from __future__ import annotations

import torch

from rljob_api.planning.plan import EnginePlan, Plan
from rljob_worker.engines import models
from rljob_worker.engines.fsdp.layers import TRANSFORMERS, Layers


def empty_model(plan: Plan, engine: EnginePlan, path: str, dtype: torch.dtype) -> torch.nn.Module:
    """Its parameters have no memory. Raises InvalidJob for a path without a usable model."""
    if not plan.has_value_head(engine):
        return models.empty_policy(path, dtype)
    if plan.is_reward_model(engine):
        return models.empty_classifier(path, dtype)
    return models.empty_value_model(path, dtype)


def layer_library_of(engine: EnginePlan, device: torch.device) -> Layers:
    """Raises InvalidJob where the library is not installed."""
    if engine.library != "Megatron":
        return TRANSFORMERS
    from rljob_worker.engines.megatron.library import megatron_layers

    return megatron_layers(device)
