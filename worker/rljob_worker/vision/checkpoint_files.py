"""What a checkpoint's JSON files say of pictures: the tokens that stand for one, and how its pixels become patches.

    config.json                      model_type, image_token_id, vision_start_token_id, vision_end_token_id,
                                     video_token_id, vision_config: patch_size, spatial_merge_size, temporal_patch_size
    preprocessor_config.json, or     image_processor_type, image_mean, image_std, rescale_factor, resample, patch_size,
    processor_config.json            merge_size, temporal_patch_size

Neither torch nor transformers is imported for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_worker.errors import InvalidJob

ARCHITECTURES: Mapping[str, str] = {
    "qwen2_5_vl": "Qwen2.5-VL",
    "qwen3_vl": "Qwen3-VL",
    "qwen3_vl_moe": "Qwen3-VL-MoE",
}
"""What people call an architecture that sees, by the `model_type` of its config."""

_REFUSED = {"gemma3": "Gemma 3 with pictures lets picture tokens attend both ways, which packed rows cannot"}

_PATCH_SIZES = {"qwen2_5_vl": 14, "qwen3_vl": 16, "qwen3_vl_moe": 16}
"""What a config leaves out where it is the default of its class."""
_MERGE_SIZE, _TEMPORAL_PATCH_SIZE = 2, 2

WRITE_TIMES = ("qwen3_vl", "qwen3_vl_moe")
"""Architectures whose prompts have each patch of frames behind its time, with a start and an end of its own."""

_PROCESSORS = ("Qwen2VLImageProcessor", "Qwen2VLImageProcessorFast", "Qwen2VLImageProcessorPil")
_STEPS = ("do_resize", "do_rescale", "do_normalize", "do_convert_rgb")
_MEAN, _STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
"""Those of CLIP, which the processor has where its file says nothing."""
_BICUBIC = 3


@dataclass(frozen=True, slots=True)
class PictureTokens:
    """Token ids that stand for a picture in a prompt: start, then one pad token for each merged patch, then end."""

    start: int
    pad: int
    end: int
    video_pad: int | None = None
    """In the place of `pad` for videos; None of a config that names none."""
    writes_times: bool = False
    """Whether each patch of frames has a start and an end of its own, with its time before: `<0.5 seconds>`."""


@dataclass(frozen=True, slots=True)
class PatchRule:
    """How pixels become patches."""

    patch_size: int
    """Pixels of a side of a patch."""
    merge_size: int
    """Patches of a side of what one token stands for."""
    temporal_patch_size: int
    """Frames of a patch; a picture is repeated."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    """Mean and standard deviation of red, green and blue, of values between 0 and 1."""
    scale: float
    """A byte times this is the value of a pixel."""
    resample: int
    """Pillow's number of the filter that resizes."""

    @property
    def factor(self) -> int:
        """Pixels of a side of what one token stands for."""
        return self.patch_size * self.merge_size


@dataclass(frozen=True, slots=True)
class VisionFiles:
    """A checkpoint that sees."""

    model_type: str
    tokens: PictureTokens
    patches: PatchRule


def read_vision_files(path: str) -> VisionFiles:
    """What the checkpoint at `path`, a directory or a name on the hub, says of pictures.

    Raises InvalidJob: a model that takes no pictures, no processor beside it, or that of another architecture.
    """
    config = _json(path, "config.json")
    if config is None:
        raise InvalidJob(f"model path {path!r} has no config.json; fetch the model again")
    model_type = str(config.get("model_type"))
    _require_architecture(path, model_type)
    return VisionFiles(model_type, _tokens(path, config), _patch_rule(path, model_type, config))


def _require_architecture(path: str, model_type: str) -> None:
    if model_type in ARCHITECTURES:
        return
    known = ", ".join(ARCHITECTURES.values())
    reason = _REFUSED.get(model_type, f"a model of type {model_type!r} takes no pictures here")
    raise InvalidJob(
        f"data.imagesColumn is set, or data.videosColumn, and the model at {path!r} does not go with it: {reason}; use "
        f"one of {known}, or leave them out"
    )


def _tokens(path: str, config: Mapping[str, Any]) -> PictureTokens:
    names = ("vision_start_token_id", "image_token_id", "vision_end_token_id")
    ids = [config.get(name) for name in names]
    if not all(isinstance(item, int) for item in ids):
        missing = next(name for name, item in zip(names, ids, strict=True) if not isinstance(item, int))
        raise InvalidJob(f"config.json of the model at {path!r} has no {missing}; fetch the model again")
    start, pad, end = (int(item) for item in ids if item is not None)
    return PictureTokens(start, pad, end, config.get("video_token_id"), config.get("model_type") in WRITE_TIMES)


def _patch_rule(path: str, model_type: str, config: Mapping[str, Any]) -> PatchRule:
    processor = _processor(path)
    name = processor.get("image_processor_type", processor.get("feature_extractor_type"))
    if name not in _PROCESSORS:
        raise InvalidJob(
            f"the processor of the model at {path!r} is a {name}, and {ARCHITECTURES[model_type]} has one of "
            f"{', '.join(_PROCESSORS)}; put the model's own preprocessor_config.json beside its weights"
        )
    for step in _STEPS:
        if processor.get(step, True) is not True:
            raise InvalidJob(f"the processor of the model at {path!r} has {step}: false; write true, or leave it out")
    sizes = (
        int(processor.get("patch_size", 14)),
        int(processor.get("merge_size", _MERGE_SIZE)),
        int(processor.get("temporal_patch_size", _TEMPORAL_PATCH_SIZE)),
    )
    _require_equal(path, _tower_sizes(model_type, config), sizes)
    mean, std = (tuple(processor.get(key) or default) for key, default in (("image_mean", _MEAN), ("image_std", _STD)))
    scale = float(processor.get("rescale_factor", 1 / 255))
    return PatchRule(*sizes, mean, std, scale, int(processor.get("resample", _BICUBIC)))


def _tower_sizes(model_type: str, config: Mapping[str, Any]) -> tuple[int, int, int]:
    tower = config.get("vision_config") or {}
    return (
        int(tower.get("patch_size", _PATCH_SIZES[model_type])),
        int(tower.get("spatial_merge_size", _MERGE_SIZE)),
        int(tower.get("temporal_patch_size", _TEMPORAL_PATCH_SIZE)),
    )


def _require_equal(path: str, tower: tuple[int, int, int], processor: tuple[int, int, int]) -> None:
    names = ("patch_size", "merge_size", "temporal_patch_size")
    for name, expected, result in zip(names, tower, processor, strict=True):
        if expected != result:
            raise InvalidJob(
                f"the processor of the model at {path!r} has {name} {result}, and its vision tower {expected}: it "
                "is of another model; put the model's own preprocessor_config.json beside its weights"
            )


def _processor(path: str) -> Mapping[str, Any]:
    for name in ("preprocessor_config.json", "processor_config.json"):
        content = _json(path, name)
        if content is None:
            continue
        inner = content.get("image_processor")
        if isinstance(inner, dict):
            return inner
        if "image_processor_type" in content or name == "preprocessor_config.json":
            return content
    raise InvalidJob(
        f"the model at {path!r} has no processor for pictures: put its preprocessor_config.json, or "
        "processor_config.json, beside the weights"
    )


def _json(path: str, name: str) -> dict[str, Any] | None:
    """A file of the checkpoint; None where it has no such file. Raises InvalidJob for what is no JSON object."""
    file = _file(path, name)
    if file is None:
        return None
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidJob(f"{file} cannot be read: {error}; fetch the model again") from error
    if not isinstance(content, dict):
        raise InvalidJob(f"{file} holds a {type(content).__name__} in place of settings; fetch the model again")
    return content


def _file(path: str, name: str) -> Path | None:
    if Path(path).is_dir():
        file = Path(path) / name
        return file if file.is_file() else None
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError

    try:
        return Path(hf_hub_download(path, name))
    except EntryNotFoundError:
        return None
    except (HfHubHTTPError, HFValidationError, OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise InvalidJob(f"{name} of the model {path!r} was not to be had: {reason}; name its directory") from error
