"""How large a job's models are, of those that are directories here."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from rljob_api.memory.model_shape import ModelShape, parse_shape
from rljob_api.memory.video_encoder import parse_video_encoder
from rljob_api.planning.memory.workers import video_encoder
from rljob_api.v1alpha1 import RLJob


def shapes_of(job: RLJob, folder: Path) -> dict[str, ModelShape]:
    """By path as the job has it; relative ones begin at `folder`. A hub's name is left out, and a config.json that
    cannot be read or is of an architecture that nobody knows: the engine says what is wrong with it."""
    result = {model.path: shape_at(folder / Path(model.path).expanduser()) for model in job.spec.models}
    encoder = video_encoder(job.spec)
    videos = None if encoder is None else parse_video_encoder(_config_at(folder / Path(encoder).expanduser()))
    return {path: replace(shape, videos=videos) for path, shape in result.items() if shape is not None}


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
