"""Pictures for two vision towers at once: resized to one size, and normalised for each of them.

As the processor of OpenVLA does it, by the fields of preprocessor_config.json: `input_sizes`, `means`, `stds`,
`interpolations` and `image_resize_strategy`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rljob_worker.errors import InvalidJob
from rljob_worker.vision.pictures import decode, picture_digest
from rljob_worker.vision.pixel_cache import PixelCache
from rljob_worker.vision.processing import Patches, PictureShape

FILE = "preprocessor_config.json"
_RESAMPLING = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3}
"""As PIL numbers them."""


@dataclass(frozen=True, slots=True)
class FusedRule:
    """How a picture becomes pixels."""

    size: int
    """Pixels of each side."""
    means: tuple[tuple[float, float, float], ...]
    """For each tower, by channel, of values from 0 to 1."""
    stds: tuple[tuple[float, float, float], ...]
    resample: int
    letterbox: bool
    """Whether a picture that is not square is bordered; else it is squeezed."""

    @staticmethod
    def of(raw: Mapping[str, Any]) -> FusedRule:
        """Raises KeyError, TypeError and ValueError for what is no such file."""
        sizes, strategy = raw["input_sizes"], raw.get("image_resize_strategy", "letterbox")
        if len({tuple(size) for size in sizes}) != 1 or sizes[0][1] != sizes[0][2]:
            raise ValueError("input_sizes are of towers that see pictures of different sizes")
        if strategy not in ("resize-naive", "letterbox"):
            raise ValueError(f"image_resize_strategy {strategy!r} is neither resize-naive nor letterbox")
        means, stds = (
            tuple((float(values[0]), float(values[1]), float(values[2])) for values in raw[name])
            for name in ("means", "stds")
        )
        resample = _RESAMPLING[raw.get("interpolations", ["bicubic"])[0]]
        return FusedRule(int(sizes[0][1]), means, stds, resample, strategy == "letterbox")


class FusedPictureProcessor:
    """Makes pixels of encoded pictures. Safe to call from several threads."""

    def __init__(self, rule: FusedRule, patch: int, pictures: PixelCache[NDArray[np.uint8]] | None = None) -> None:
        """patch: pixels of a patch's side."""
        self.rule, self._patches = rule, rule.size // patch
        self._cache = PixelCache[NDArray[np.uint8]]() if pictures is None else pictures

    def shape(self, encoded: bytes | memoryview) -> PictureShape:
        """Equal for all pictures, none of which is opened."""
        return PictureShape((1, self._patches, self._patches), self._patches**2)

    def patches(self, encoded: bytes | memoryview) -> Patches:
        """Pixels float32 [1, 3 x towers, size, size]. Raises BadPicture."""
        pixels = self._cache.get(picture_digest(encoded), lambda: self._resized(encoded))
        values = pixels.astype(np.float32).transpose(2, 0, 1) / np.float32(255)
        channels = [
            (values - np.array(mean, np.float32)[:, None, None]) / np.array(std, np.float32)[:, None, None]
            for mean, std in zip(self.rule.means, self.rule.stds, strict=True)
        ]
        return Patches(np.concatenate(channels)[None], np.array([1, self._patches, self._patches], np.int64))

    def read_ahead(self, pictures: Sequence[bytes | memoryview]) -> None:
        """Begin to decode pictures in threads; what is wrong with one is raised by who asks for it."""
        self._cache.begin((picture_digest(encoded), partial(self._resized, encoded)) for encoded in pictures)

    def _resized(self, encoded: bytes | memoryview) -> NDArray[np.uint8]:
        from PIL import Image, ImageOps

        image, size = Image.fromarray(decode(encoded)), self.rule.size
        if self.rule.letterbox and image.width != image.height:
            fill = tuple(int(value * 255) for value in self.rule.means[0])
            border = max(image.size)
            horizontal, vertical = (border - image.width) // 2, (border - image.height) // 2
            image = ImageOps.expand(image, (horizontal, vertical, horizontal, vertical), fill=fill)
        if image.size != (size, size):
            image = image.resize((size, size), resample=Image.Resampling(self.rule.resample))
        return np.asarray(image)


@cache
def shared_fused_processor(path: str, patch: int) -> FusedPictureProcessor:
    """The one processor of a checkpoint in this process. Raises InvalidJob for one without its file."""
    from transformers.utils import cached_file

    file = cached_file(path, FILE, _raise_exceptions_for_missing_entries=False)
    if file is None:
        raise InvalidJob(f"model path {path!r}: no {FILE} in it, which says how it reads pictures; fetch it again")
    try:
        with open(file, encoding="utf-8") as opened:
            rule = FusedRule.of(json.load(opened))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise InvalidJob(f"model path {path!r}: {FILE}: {error}; fetch the model again") from error
    return FusedPictureProcessor(rule, patch)
