"""Embeddings of the videos of episodes, by a function of the user's own or by V-JEPA 2 (https://arxiv.org/abs/2506.09985)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rljob_api.v1alpha1.simulator import EpisodeVideoSpec
from rljob_worker.conversations.world import TrajectoryFailed
from rljob_worker.embodied.simulators.settings import FIELD
from rljob_worker.embodied.video_frames import SPARE, evenly
from rljob_worker.errors import InvalidJob
from rljob_worker.users_code.function import check_call, load_function
from rljob_worker.vision.pictures import decode

Frames = NDArray[np.uint8]
"""[frames, height, width, 3]"""
_PROCESSOR = "video_preprocessor_config.json"
_MARGIN = 292 / 256
"""How much longer than the crop the shorter side is in published models."""
_COLOURS = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
"""ImageNet's: what pixels are normalised by where the model does not say."""
Encode = Callable[[Frames], Any]


class VideoEncoder:
    """Encodes videos one after another in a thread of its own, beside the episodes that go on."""

    def __init__(self, encode: Encode, name: str, num_frames: int) -> None:
        """encode: frames to numbers [dimensions], or None. name: what errors call it."""
        self._encode, self._name, self._num_frames = encode, name, num_frames
        self._thread = ThreadPoolExecutor(1, "video-encoder")
        self._dimensions: int | None = None

    @staticmethod
    def load(spec: EpisodeVideoSpec) -> VideoEncoder:
        """The encoder of a job. Raises InvalidJob for one that is not there."""
        if spec.run is not None:
            function = load_function(f"{FIELD}.video.run", spec.run)
            check_call(f"{FIELD}.video.run", spec.run, function, ("frames",), spec.options)
            return VideoEncoder(lambda frames: function(frames, **spec.options), spec.run, spec.frames)
        assert spec.path is not None, "the job was checked"
        return VideoEncoder(vjepa2(spec.path, spec.frames), spec.path, spec.frames)

    @property
    def most_waiting(self) -> int:
        """Pictures of an episode that are kept for it, at most."""
        return SPARE * self._num_frames

    async def embedding(self, pictures: Sequence[bytes]) -> NDArray[np.float32] | None:
        """[dimensions] of a video, from one encoded picture or more; None where the encoder gives none. Raises
        TrajectoryFailed where it raises, InvalidJob for what is no embedding."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._embedding, pictures)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()

    def _embedding(self, pictures: Sequence[bytes]) -> NDArray[np.float32] | None:
        frames = np.stack([decode(pictures[at]) for at in evenly(len(pictures), self._num_frames)])
        try:
            result = self._encode(frames)
        except Exception as error:  # user code: whatever it raises costs the episode
            raise TrajectoryFailed("video_encoder", f"{self._name}: {type(error).__name__}: {error}") from error
        return None if result is None else self._checked(result)

    def _checked(self, result: Any) -> NDArray[np.float32]:
        try:
            numbers = np.asarray(result, np.float32)
        except (TypeError, ValueError):
            numbers = np.empty(0, np.float32)
        if numbers.ndim != 1 or not numbers.size or not np.isfinite(numbers).all():
            raise InvalidJob(
                f"{FIELD}.video: {self._name} returned {str(result)[:100]}; an embedding is a list of finite numbers, "
                "or None"
            )
        if self._dimensions not in (None, len(numbers)):
            raise InvalidJob(
                f"{FIELD}.video: {self._name} returned {len(numbers)} numbers, and {self._dimensions} of an earlier "
                "video; all embeddings have the same number of dimensions"
            )
        self._dimensions = len(numbers)
        return numbers


def vjepa2(path: str, num_frames: int) -> Encode:
    """The mean of what the encoder of a V-JEPA 2 model says of all patches of a video. Raises InvalidJob where there is
    none."""
    import torch
    from transformers import AutoConfig, VJEPA2Model
    from transformers.utils import cached_file

    try:
        config = AutoConfig.from_pretrained(path)
        if config.model_type != "vjepa2":
            raise InvalidJob(f"{FIELD}.video.path {path!r} is a {config.model_type!r} model, not V-JEPA 2")
        if num_frames % config.tubelet_size:
            raise InvalidJob(
                f"{FIELD}.video.frames is {num_frames}, and {path!r} reads {config.tubelet_size} frames at a time; "
                f"write a multiple of {config.tubelet_size}"
            )
        file = cached_file(path, _PROCESSOR, _raise_exceptions_for_missing_entries=False)
        processor = {} if file is None else json.loads(Path(file).read_text())
        model: Any = VJEPA2Model.from_pretrained(path, dtype=torch.float32).eval()
    except (OSError, ValueError, KeyError) as error:
        raise InvalidJob(f"{FIELD}.video.path: no V-JEPA 2 model can be loaded from {path!r}: {error}") from error
    crop = config.crop_size
    scale = processor.get("size", {}).get("shortest_edge", _MARGIN * crop) / crop
    mean, std = (np.array(processor.get(f"image_{name}", default), np.float32) for name, default in _COLOURS.items())

    def encode(frames: Frames) -> NDArray[np.float32]:
        pixels = np.stack([_cropped(frame, crop, scale) for frame in frames])
        values = ((pixels / np.float32(255.0) - mean) / std).astype(np.float32)
        with torch.inference_mode():
            features = model.get_vision_features(torch.from_numpy(values.transpose(0, 3, 1, 2).copy())[None])
        return np.asarray(features.mean(dim=1)[0].numpy(), np.float32)

    return encode


def _cropped(frame: Frames, crop: int, scale: float) -> Frames:
    """The middle of a frame, [crop, crop, 3], after its shorter side has `scale` times as many pixels."""
    from PIL import Image

    height, width = frame.shape[:2]
    ratio = max(1.0, scale) * crop / min(height, width)
    size = (max(crop, round(width * ratio)), max(crop, round(height * ratio)))
    resized = np.asarray(Image.fromarray(frame).resize(size, Image.Resampling.BILINEAR))
    top, left = (resized.shape[0] - crop) // 2, (resized.shape[1] - crop) // 2
    return resized[top : top + crop, left : left + crop]
