"""The architectures that the engines know, each of which a test holds against stock transformers, packed and alone.

What an architecture must not do to be packed: attend by another formula than `attention.varlen` has, keep another state
than keys and values, or place a token by what else is computed with it.
"""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig

from rljob_worker.engines.models.actions import ACTION_FAMILIES, action_words_of
from rljob_worker.errors import InvalidJob

FAMILIES = {
    "gemma2": "Gemma 2",
    "gemma3_text": "Gemma 3 (text)",
    "gpt2": "GPT-2",
    "llama": "Llama 2 and 3",
    "mistral": "Mistral",
    "phi": "Phi 1 and 2",
    "phi3": "Phi 3 and 4",
    "qwen2": "Qwen2 and 2.5",
    "qwen3": "Qwen3",
    "qwen3_moe": "Qwen3-MoE",
}
"""What people call an architecture, by the `model_type` of its config."""

VISION_FAMILIES = {
    "qwen2_5_vl": "Qwen2.5-VL",
    "qwen3_vl": "Qwen3-VL",
    "qwen3_vl_moe": "Qwen3-VL-MoE",
}
"""Those that see: a vision tower makes features of pictures, which are embeddings of the decoder's tokens."""

_BOTH_WAYS = {"gemma3": "Gemma 3", "gemma3n": "Gemma 3n", "paligemma": "PaliGemma"}
"""Their picture tokens attend to each other in both directions, which a pack of causal rows does not."""

_LAYERS = {"full_attention", "sliding_attention"}
_ROTARY = {"default", "linear", "llama3", "yarn"}
"""Their frequencies are constants."""
_UNBUILT = "are not built yet"
_BY_LONGEST = (
    "turn by the longest row that is computed at the time, so that a row would depend on what is packed with it"
)
"""What dynamic NTK and longrope do."""


def require_known_family(path: str, config: PretrainedConfig) -> None:
    """Raises InvalidJob naming what the model has and what the engines know."""
    known = ", ".join(sorted([*FAMILIES.values(), *VISION_FAMILIES.values(), *ACTION_FAMILIES.values()]))
    if name := _BOTH_WAYS.get(config.model_type):
        raise InvalidJob(
            f"model path {path!r}: picture tokens of {name} attend to later ones, too, which the engines do not "
            f"compute; use one of {', '.join(sorted(VISION_FAMILIES.values()))}"
        )
    if config.model_type not in FAMILIES and config.model_type not in ACTION_FAMILIES and not sees(config):
        raise InvalidJob(
            f"model path {path!r}: the engines do not know models of type {config.model_type!r}; use one of {known}"
        )
    decoder = config.get_text_config()
    _require("layers of type", path, set(getattr(decoder, "layer_types", None) or ()), _LAYERS, _UNBUILT)
    rotary = set(_rope_types(getattr(decoder, "rope_parameters", None)))
    _require("rotary positions of type", path, rotary, _ROTARY, _BY_LONGEST)
    if getattr(config, "use_bidirectional_attention", False):
        raise InvalidJob(f"model path {path!r}: it attends to later tokens and cannot sample; use a causal model")
    if quantization := getattr(config, "quantization_config", None):
        method = quantization.get("quant_method", "another number format")
        raise InvalidJob(f"model path {path!r}: its weights are quantized by {method}; use the model they were made of")
    try:
        action_words_of(config)
    except InvalidJob as error:
        raise InvalidJob(f"model path {path!r}: {error}") from error


def sees(config: PretrainedConfig) -> bool:
    """Whether a model of this config has a vision tower."""
    return config.model_type in VISION_FAMILIES


def logit_cap(config: PretrainedConfig) -> float | None:
    """The bound c of logits c tanh(z / c), where the architecture has one."""
    return getattr(config, "final_logit_softcapping", None)


def _require(what: str, path: str, result: set[str], built: set[str], reason: str) -> None:
    if others := result - built:
        raise InvalidJob(
            f"model path {path!r}: {what} {', '.join(sorted(others))} {reason}; use a model of "
            f"{', '.join(sorted(built))}"
        )


def _rope_types(parameters: dict[str, Any] | None) -> list[str]:
    """The RoPE types of all layers, or of each type of layer where they differ."""
    if not parameters:
        return []
    per_type = [parameter for parameter in parameters.values() if isinstance(parameter, dict)]
    return [item.get("rope_type", "default") for item in per_type or [parameters]]
