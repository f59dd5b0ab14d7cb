"""V-JEPA 2 (https://arxiv.org/abs/2506.09985): videos as vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rljob_worker.errors import InvalidJob

Frames = NDArray[np.uint8]
"""[frames, height, width, 3]"""
_PROCESSOR = "video_preprocessor_config.json"
_MARGIN = 292 / 256
"""How much longer than the crop the shorter side is in published models."""
_COLOURS = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
"""ImageNet's: what pixels are normalised by where the model does not say."""


class VideoModel:
    """The encoder of V-JEPA 2, whole on one device."""

    def __init__(self, field: str, path: str, device: str = "cpu", precision: str = "float32") -> None:
        """field: where the job names it. precision: a number format of torch. Raises InvalidJob where there is none."""
        import torch
        from transformers import AutoConfig, VJEPA2Model

        self._device, self._dtype = device, getattr(torch, precision)
        try:
            config = AutoConfig.from_pretrained(path)
            if config.model_type != "vjepa2":
                raise InvalidJob(f"{field} {path!r} is a {config.model_type!r} model, not V-JEPA 2")
            processor = _processor_of(path)
            model, loading_info = VJEPA2Model.from_pretrained(path, dtype=self._dtype, output_loading_info=True)
        except (OSError, ValueError, KeyError) as error:
            raise InvalidJob(f"{field}: no V-JEPA 2 model can be loaded from {path!r}: {error}") from error
        if missing := sorted(name for name in loading_info["missing_keys"] if name.startswith("encoder.")):
            raise InvalidJob(f"{field} {path!r} lacks weights of the encoder ({', '.join(missing[:3])})")
        self._encoder: Any = model.encoder.to(device).eval()  # the predictor is for training it
        self._path, self._tubelet, self._crop = path, int(config.tubelet_size), int(config.crop_size)
        self._scale = processor.get("size", {}).get("shortest_edge", _MARGIN * self._crop) / self._crop
        colours = [processor.get(f"image_{name}", default) for name, default in _COLOURS.items()]
        self._mean, self._std = np.array(colours, np.float32)

    def require_frames(self, number: int) -> None:
        """Raises ValueError where it reads no videos of so many frames."""
        if number % self._tubelet:
            raise ValueError(
                f"a video has {number} frames, and {self._path!r} reads {self._tubelet} at a time; write a multiple of "
                f"{self._tubelet}"
            )

    def encode(self, frames: Frames) -> NDArray[np.float32]:
        """The mean of what it says of all patches, [dimensions]. Raises ValueError as `require_frames`."""
        import torch

        self.require_frames(len(frames))
        pixels = np.stack([_cropped(frame, self._crop, self._scale) for frame in frames])
        values = ((pixels / np.float32(255.0) - self._mean) / self._std).astype(np.float32)
        video = torch.from_numpy(values.transpose(0, 3, 1, 2).copy())[None].to(self._device, self._dtype)
        with torch.inference_mode():
            patches = self._encoder(video).last_hidden_state
        return np.asarray(patches.float().mean(dim=1)[0].cpu().numpy(), np.float32)


def _processor_of(path: str) -> dict[str, Any]:
    """What the model says of how pixels are prepared."""
    from transformers.utils import cached_file

    file = cached_file(path, _PROCESSOR, _raise_exceptions_for_missing_entries=False)
    return {} if file is None else dict(json.loads(Path(file).read_text()))


def _cropped(frame: Frames, crop: int, scale: float) -> Frames:
    """The middle of a frame, [crop, crop, 3], after its shorter side has `scale` times as many pixels."""
    from PIL import Image

    height, width = frame.shape[:2]
    ratio = max(1.0, scale) * crop / min(height, width)
    size = (max(crop, round(width * ratio)), max(crop, round(height * ratio)))
    resized = np.asarray(Image.fromarray(frame).resize(size, Image.Resampling.BILINEAR))
    top, left = (resized.shape[0] - crop) // 2, (resized.shape[1] - crop) // 2
    return resized[top : top + crop, left : left + crop]
