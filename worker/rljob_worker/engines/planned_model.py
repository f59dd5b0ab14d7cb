"""Models of a plan, before their weights are read, who computes their layers, and what reads their pictures."""

from __future__ import annotations

import torch

from rljob_api.planning.plan import EnginePlan, Plan
from rljob_worker.engines import models
from rljob_worker.engines.fsdp.layers import TRANSFORMERS, Layers
from rljob_worker.engines.models.actions import acts_by_towers
from rljob_worker.engines.models.families import sees
from rljob_worker.engines.picture_reader import PictureReader
from rljob_worker.vision.fused_processing import shared_fused_processor
from rljob_worker.vision.job_budgets import picture_budget, video_budget
from rljob_worker.vision.processing import shared_processor


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


def planned_reader(plan: Plan, model: torch.nn.Module, path: str) -> PictureReader | None:
    """What reads the pictures of prompts for a model that sees; None in a job without pictures, and for a model that
    does not see, which refuses rows with pictures. path: the model's directory. Raises InvalidJob for a checkpoint
    without its processor."""
    data = plan.spec.data
    backbone = getattr(model, "backbone", model)
    if acts_by_towers(model.config):
        return PictureReader.of(backbone, shared_fused_processor(path, model.config.towers[0].patch))
    if not plan.spec.sees or not sees(model.config):
        return None
    return PictureReader.of(backbone, shared_processor(path, picture_budget(data), video_budget(data)))
