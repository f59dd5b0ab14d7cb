"""Configs of a directory or a hub name, and the mistakes people make with paths."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    GenerationConfig,
    PretrainedConfig,
)
from transformers.utils import cached_file

from rljob_worker.engines.models.actions.words import ACTION_FAMILIES, FLOW_FAMILIES
from rljob_worker.engines.models.families import require_known_family
from rljob_worker.errors import InvalidJob

_THAT_SEE = AutoModelForImageTextToText

WHAT_CONFIGS_RAISE = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What a wrong config.json raises: transformers finds some mistakes, and stumbles over the rest."""


def config_error_reason(error: Exception) -> str:
    """In one line, without advice to update libraries; a bare word says nothing without the kind of error."""
    text = " ".join(str(error).partition("\n\n")[0].split())
    return text if isinstance(error, OSError | ValueError | StrictDataclassError) else f"{type(error).__name__}: {text}"


def model_config(path: str) -> PretrainedConfig:
    """The config of a causal LM that the engines know, or InvalidJob naming the path and what to do."""
    directory = Path(path)
    if _looks_local(path) and not directory.is_dir():
        raise InvalidJob(f"model path {path!r}: no such directory; give a model directory or a Hugging Face name")
    if directory.is_dir() and not (directory / "config.json").is_file():
        raise InvalidJob(f"model path {path!r}: no config.json in it; point at the directory that holds the model")
    _require_no_flow(path, directory)
    try:
        config = AutoConfig.from_pretrained(path)
    except (OSError, StrictDataclassError, *WHAT_CONFIGS_RAISE) as error:
        raise InvalidJob(
            f"model path {path!r}: transformers cannot read its config: {config_error_reason(error)}"
        ) from error
    if type(config) not in AutoModelForCausalLM._model_mapping and type(config) not in _THAT_SEE._model_mapping:
        raise InvalidJob(
            f"model path {path!r}: {config.model_type!r} is not a causal language model; use one that "
            "AutoModelForCausalLM can load"
        )
    require_known_family(path, config)
    return config


def _require_no_flow(path: str, directory: Path) -> None:
    """Raises InvalidJob for a policy whose actions are not drawn from bins, which transformers may not know either."""
    if not directory.is_dir():
        return
    try:
        raw = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        kind = raw.get("model_type") or raw.get("type")
    except (OSError, ValueError, AttributeError):
        return  # transformers says what is wrong with it
    if isinstance(kind, str) and (name := FLOW_FAMILIES.get(kind)):
        raise InvalidJob(
            f"model path {path!r}: {name} makes actions by a flow, whose log-probs the engines do not compute; use a "
            f"policy with action tokens: {', '.join(sorted(ACTION_FAMILIES.values()))}, or a model with action_tokens"
        )


def end_token_ids(path: str, config: PretrainedConfig) -> tuple[int, ...]:
    """Tokens that end a response, ascending: those of the generation config, else of the config, and the tokenizer's
    own. May be none."""
    eos_token_id = GenerationConfig.from_model_config(config).eos_token_id
    if (Path(path) / "generation_config.json").is_file() or not Path(path).is_dir():
        with suppress(OSError):  # a hub model may have no generation config
            own = GenerationConfig.from_pretrained(path).eos_token_id
            eos_token_id = eos_token_id if own is None else own
    listed = eos_token_id if isinstance(eos_token_id, list | tuple) else (eos_token_id,)
    return tuple(sorted({int(token) for token in (*listed, _tokenizer_end_token(path)) if token is not None}))


def _looks_local(path: str) -> bool:
    """A Hugging Face name is `name` or `owner/name`; everything else, and every directory that exists, is a path."""
    return Path(path).is_dir() or path.startswith((".", "/", "~")) or path.count("/") > 1


def _tokenizer_end_token(path: str) -> int | None:
    """The id of the tokenizer's `eos_token`, read from its files."""
    settings, vocabulary = (read_json(path, name) for name in ("tokenizer_config.json", "tokenizer.json"))
    name = settings.get("eos_token")
    name = name.get("content") if isinstance(name, dict) else name
    return next((token["id"] for token in vocabulary.get("added_tokens", []) if token["content"] == name), None)


def read_json(path: str, name: str) -> dict[str, Any]:
    """A file of a model's directory or of the hub; empty where there is none."""
    result = cached_file(path, name, _raise_exceptions_for_missing_entries=False)
    return {} if result is None else json.loads(Path(result).read_text())
