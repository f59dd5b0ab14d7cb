"""Models without weights, with random ones, and whole ones for a process on its own."""

from __future__ import annotations

import torch
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    GenerationMixin,
    PreTrainedModel,
)

from rljob_worker.engines.attention.varlen import ATTENTION
from rljob_worker.engines.gelu import replace_gelus
from rljob_worker.engines.models.configs import WHAT_CONFIGS_RAISE, config_error_reason, model_config
from rljob_worker.engines.models.drawn_weights import DrawnWeights
from rljob_worker.engines.models.families import sees
from rljob_worker.engines.models.last_layer import fuse_last_layer
from rljob_worker.engines.models.memory import give_memory, parameters_without_memory
from rljob_worker.engines.models.value_model import ValueModel
from rljob_worker.engines.models.vision import fuse_tower
from rljob_worker.engines.models.weight_files import WeightFiles
from rljob_worker.engines.rms_norm import replace_rms_norms
from rljob_worker.engines.router import replace_routers
from rljob_worker.errors import InvalidJob

_OF_TOWERS = "sdpa"
"""Attention of vision towers: transformers' own, over the patches of each picture."""


def empty_policy(path: str, dtype: torch.dtype) -> PreTrainedModel:
    """A causal LM in evaluation mode whose parameters have no memory. Raises InvalidJob when the path is none that the
    engines know."""
    with parameters_without_memory():
        model = _build(AutoModelForCausalLM, path, dtype)
    _replace_modules(model)
    return model


def empty_value_model(path: str, dtype: torch.dtype) -> ValueModel:
    """A critic on the backbone of a causal LM, likewise."""
    with parameters_without_memory():
        model = ValueModel(_build(AutoModel, path, dtype))
    _replace_modules(model)
    model.eval()
    return model


def empty_classifier(path: str, dtype: torch.dtype) -> ValueModel:
    """A sequence classifier of one output, likewise. Raises InvalidJob for another number of them."""
    num_labels = model_config(path).num_labels
    if num_labels != 1:
        raise InvalidJob(f"model path {path!r} has {num_labels} outputs, and a model of rewards has 1; name another")
    with parameters_without_memory():
        model = ValueModel(_build(AutoModel, path, dtype), is_classifier=True)
    _replace_modules(model)
    model.eval()
    return model


def random_policy(path: str, dtype: torch.dtype, seed: int) -> PreTrainedModel:
    """A whole causal LM whose weights are a function of `seed`; only the config of the path is read."""
    model = empty_policy(path, dtype)
    _draw(model, seed)
    return model


def random_value_model(path: str, dtype: torch.dtype, seed: int) -> ValueModel:
    """A critic on the backbone of the random policy of this seed."""
    model = empty_value_model(path, dtype)
    _draw(model, seed)
    return model


def _draw(model: PreTrainedModel | ValueModel, seed: int) -> None:
    weights = DrawnWeights.of(model, seed)
    give_memory(model, torch.device("cpu"))
    weights.fill(model)


def load_policy(path: str, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """A whole causal LM, with the weights of its files. Raises InvalidJob and BadData."""
    files = WeightFiles.find(path)
    model = empty_policy(path, dtype)
    give_memory(model, device)
    files.fill(model)
    return model


def _build(auto: type[AutoModel | AutoModelForCausalLM], path: str, dtype: torch.dtype) -> PreTrainedModel:
    config = model_config(path)
    if dtype == torch.float64:
        config._experts_implementation = "eager"  # else products of experts are grouped, of which torch has none here
    attention: str | dict[str, str] = ATTENTION
    if sees(config):
        auto = AutoModelForImageTextToText if auto is AutoModelForCausalLM else auto
        attention = {"": ATTENTION, "text_config": ATTENTION, "vision_config": _OF_TOWERS}
    try:
        model: PreTrainedModel = auto.from_config(config, dtype=dtype, attn_implementation=attention)
    except WHAT_CONFIGS_RAISE as error:
        raise InvalidJob(
            f"model path {path!r}: transformers cannot build what its config.json says: "
            f"{config_error_reason(error)}; fetch the "
            "model again, or correct the file"
        ) from error
    if sees(config):
        fuse_tower(model)
    if isinstance(model, GenerationMixin):  # a policy; a backbone alone has no last layer
        fuse_last_layer(model)
    return model.eval()


def _replace_modules(model: torch.nn.Module) -> None:
    """Where ours compute the same, faster, in more bits or in less memory."""
    replace_rms_norms(model)
    replace_gelus(model)
    replace_routers(model)
