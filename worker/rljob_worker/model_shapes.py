"""How large a job's models are, of those that are directories here."""

import json
from pathlib import Path

from rljob_api.memory.model_shape import ModelShape, parse_shape
from rljob_api.v1alpha1 import RLJob


def shapes_of(job: RLJob, folder: Path) -> dict[str, ModelShape]:
    """By path as the job has it; relative ones begin at `folder`. A hub's name is left out, and a config.json that
    cannot be read or is of an architecture that nobody knows: the engine says what is wrong with it."""
    result = {model.path: shape_at(folder / Path(model.path).expanduser()) for model in job.spec.models}
    return {path: shape for path, shape in result.items() if shape is not None}


def shape_at(directory: Path) -> ModelShape | None:
    """Shape of the model in a directory; None without a config that can be read."""
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return parse_shape(config) if isinstance(config, dict) else None
