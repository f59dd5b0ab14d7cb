"""How large a job's models are, where their configs are at hand."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rljob_api.memory.model_shape import ModelShape, parse_shape
from rljob_api.memory.video_encoder import parse_video_encoder
from rljob_api.planning.memory.workers import video_encoder
from rljob_api.v1alpha1 import RLJobSpec

ConfigOf = Callable[[str], Mapping[str, Any]]
"""The config.json of a model by its path in a job; empty where there is none that can be read."""


def shapes_of(spec: RLJobSpec, config_of: ConfigOf) -> dict[str, ModelShape]:
    """By path as the job has it. A model whose config is not at hand is left out, and one of an architecture that
    nobody knows: the engine says what is wrong with it."""
    result = {model.path: parse_shape(config_of(model.path)) for model in spec.models}
    encoder = video_encoder(spec)
    videos = None if encoder is None else parse_video_encoder(config_of(encoder))
    return {path: replace(shape, videos=videos) for path, shape in result.items() if shape is not None}


def configs_in(folder: Path) -> ConfigOf:
    """Reads those of models that are directories here; relative paths begin at `folder`."""
    return lambda path: _config_at(folder / Path(path).expanduser())


def shape_at(directory: Path) -> ModelShape | None:
    """Shape of the model in a directory; None without a config that can be read."""
    return parse_shape(_config_at(directory))


def _config_at(directory: Path) -> dict[str, Any]:
    """Its config.json; empty where there is none that can be read."""
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}
