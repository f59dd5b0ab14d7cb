"""Models from a directory or a hub name, set up for our attention; and the mistakes people make with paths."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.utils import logging as transformers_logging

from rljob_worker.engines.rms_norm import replace_rms_norms
from rljob_worker.engines.varlen_attention import ATTENTION
from rljob_worker.errors import BadData, InvalidJob

VALUE_HEAD = "value_head.safetensors"
_LAYER_TYPES = {"full_attention", "sliding_attention"}
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


class ValueModel(torch.nn.Module):
    """A backbone with one number per token. A new head is zero: the first values are 0, and the backbone stays the
    policy's."""

    def __init__(self, backbone: PreTrainedModel) -> None:
        super().__init__()
        self.backbone = backbone
        hidden = backbone.config.get_text_config().hidden_size
        self.value_head = torch.nn.Linear(hidden, 1, bias=True, dtype=backbone.dtype)
        torch.nn.init.zeros_(self.value_head.weight)
        torch.nn.init.zeros_(self.value_head.bias)

    def forward(self, positions_to_keep: torch.Tensor, **inputs: object) -> torch.Tensor:
        """Values [tokens] at the given positions of one pack."""
        hidden = self.backbone(**inputs).last_hidden_state[0]
        return self.value_head(hidden.index_select(0, positions_to_keep)).squeeze(-1)


def load_policy(path: str, dtype: torch.dtype, seed: int) -> PreTrainedModel:
    """A causal LM in evaluation mode. A directory without weights gives random ones, a function of `seed`.

    Raises InvalidJob when the path is not a causal LM that transformers knows.
    """
    config = model_config(path)
    return _load(AutoModelForCausalLM, path, config, dtype, seed)


def load_value_model(path: str, dtype: torch.dtype, seed: int) -> ValueModel:
    """A critic: its own head where the directory has one, else a zero head on the backbone found there."""
    config = model_config(path)
    if _is_random(path):  # the same draw as the policy's, so that the critic starts on its backbone
        backbone = _load(AutoModelForCausalLM, path, config, dtype, seed).base_model
    else:
        backbone = _load(AutoModel, path, config, dtype, seed)
    model = ValueModel(backbone)
    head = Path(path) / VALUE_HEAD
    if head.is_file():
        model.value_head.load_state_dict({name: value.to(dtype) for name, value in load_file(head).items()})
    return model.eval()


def save_value_head(directory: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Write the head beside the backbone, where `load_value_model` looks for it."""
    save_file(tensors, directory / VALUE_HEAD)


def model_config(path: str) -> PretrainedConfig:
    """The config of a causal LM, or InvalidJob naming the path and what to do."""
    directory = Path(path)
    if _looks_local(path) and not directory.is_dir():
        raise InvalidJob(f"model path {path!r}: no such directory; give a model directory or a Hugging Face name")
    if directory.is_dir() and not (directory / "config.json").is_file():
        raise InvalidJob(f"model path {path!r}: no config.json in it; point at the directory that holds the model")
    try:
        config = AutoConfig.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise InvalidJob(f"model path {path!r}: transformers cannot read its config: {error}") from error
    if type(config) not in AutoModelForCausalLM._model_mapping:
        raise InvalidJob(
            f"model path {path!r}: {config.model_type!r} is not a causal language model; use one that "
            "AutoModelForCausalLM can load"
        )
    return config


def end_token_ids(path: str, config: PretrainedConfig) -> tuple[int, ...]:
    """Tokens that end a response: of the generation config, else of the config, else of the tokenizer's files. May be
    none."""
    found = GenerationConfig.from_model_config(config).eos_token_id
    if (Path(path) / "generation_config.json").is_file() or not Path(path).is_dir():
        with suppress(OSError):  # a hub model may have no generation config
            found = GenerationConfig.from_pretrained(path).eos_token_id or found
    if found is None:
        found = _tokenizer_end_token(Path(path))
    if found is None:
        return ()
    return tuple(found) if isinstance(found, list | tuple) else (int(found),)


def _load(auto: type, path: str, config: PretrainedConfig, dtype: torch.dtype, seed: int) -> PreTrainedModel:
    _refuse_other_layers(path, config)
    if _is_random(path):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = auto.from_config(config, dtype=dtype, attn_implementation=ATTENTION)
    else:
        transformers_logging.disable_progress_bar()
        try:
            model = auto.from_pretrained(path, config=config, dtype=dtype, attn_implementation=ATTENTION)
        except (SafetensorError, OSError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise BadData(f"model path {path!r}: cannot read its weights: {reason}; fetch the model again") from error
    if not model._supports_attention_backend:
        raise InvalidJob(
            f"model path {path!r}: {type(model).__name__} computes its own attention and cannot be packed; use a model "
            "with a replaceable attention, such as Llama, Qwen or GPT-2"
        )
    replace_rms_norms(model)
    return model.eval()


def _refuse_other_layers(path: str, config: PretrainedConfig) -> None:
    """Layers that keep another state than keys and values, or attend in another pattern."""
    others = set(getattr(config.get_text_config(), "layer_types", None) or ()) - _LAYER_TYPES
    if others:
        raise InvalidJob(
            f"model path {path!r}: layers of type {', '.join(sorted(others))} are not built yet; use a model of "
            f"{' and '.join(sorted(_LAYER_TYPES))}"
        )


def _looks_local(path: str) -> bool:
    """A Hugging Face name is `name` or `owner/name`; everything else, and every directory that exists, is a path."""
    return Path(path).is_dir() or path.startswith((".", "/", "~")) or path.count("/") > 1


def _is_random(path: str) -> bool:
    """A local directory with a config and no weights."""
    files = (file for pattern in _WEIGHTS for file in Path(path).glob(pattern))
    return Path(path).is_dir() and not any(file.name != VALUE_HEAD for file in files)


def _tokenizer_end_token(directory: Path) -> int | None:
    """The id of the tokenizer's `eos_token`, read from its files."""
    settings, vocabulary = directory / "tokenizer_config.json", directory / "tokenizer.json"
    if not (settings.is_file() and vocabulary.is_file()):
        return None
    name = json.loads(settings.read_text()).get("eos_token")
    name = name.get("content") if isinstance(name, dict) else name
    added = json.loads(vocabulary.read_text()).get("added_tokens", [])
    return next((token["id"] for token in added if token["content"] == name), None)
