"""Configs of a directory or a hub name, and the mistakes people make with paths."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PretrainedConfig

from rljob_worker.engines.models.families import require_known_family
from rljob_worker.errors import InvalidJob


def model_config(path: str) -> PretrainedConfig:
    """The config of a causal LM that the engines know, or InvalidJob naming the path and what to do."""
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
    require_known_family(path, config)
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


def _looks_local(path: str) -> bool:
    """A Hugging Face name is `name` or `owner/name`; everything else, and every directory that exists, is a path."""
    return Path(path).is_dir() or path.startswith((".", "/", "~")) or path.count("/") > 1


def _tokenizer_end_token(directory: Path) -> int | None:
    """The id of the tokenizer's `eos_token`, read from its files."""
    settings, vocabulary = directory / "tokenizer_config.json", directory / "tokenizer.json"
    if not (settings.is_file() and vocabulary.is_file()):
        return None
    name = json.loads(settings.read_text()).get("eos_token")
    name = name.get("content") if isinstance(name, dict) else name
    added = json.loads(vocabulary.read_text()).get("added_tokens", [])
    return next((token["id"] for token in added if token["content"] == name), None)
