"""From encoded pictures to the patches that a vision tower takes: one implementation for rollout and training.

    processor = PictureProcessor(read_vision_files(path), PixelBudget(1024, 589824))
    processor.num_tokens(read_header(encoded).size)     tokens of the picture in a prompt
    processor.patches(encoded)                          what the tower computes with

Values are those of `Qwen2VLImageProcessorPil` of transformers, bit for bit. An engine with a processor of its own is
given `pixels`, which are already of the size that its processor would choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from rljob_worker.errors import WrongField
from rljob_worker.vision.checkpoint_files import PatchRule, VisionFiles, read_vision_files
from rljob_worker.vision.pictures import Pixels, decode, picture_digest
from rljob_worker.vision.pixel_cache import PixelCache
from rljob_worker.vision.sizes import PixelBudget, fitted_size

CHANNELS = 3


@dataclass(frozen=True, slots=True, eq=False)
class Patches:
    """A picture as a vision tower takes it."""

    pixel_values: NDArray[np.float32]
    """[patches, 3 * temporal_patch_size * patch_size ** 2]; patches that are merged are neighbours."""
    grid_thw: NDArray[np.int64]
    """[3]: frames / temporal_patch_size, rows and columns of patches."""

    @property
    def num_patches(self) -> int:
        return len(self.pixel_values)


class PictureProcessor:
    """Resizes pictures and cuts them into patches. Safe to call from several threads.

    budget: pixels of a resized picture. Raises WrongField for one below what a single token stands for.
    """

    def __init__(self, files: VisionFiles, budget: PixelBudget, cache: PixelCache | None = None) -> None:
        self.rule, self.tokens, self.budget = files.patches, files.tokens, budget
        self._cache = PixelCache() if cache is None else cache
        smallest = files.patches.factor**2
        if budget.max_pixels < smallest:
            raise WrongField(
                f"data.image.maxPixels: {budget.max_pixels} is less than one token of the model stands for, {smallest} "
                f"pixels; write {smallest} or more",
                "data.image.maxPixels",
            )
        self._values = _values_of_bytes(files.patches)

    @staticmethod
    def load(path: str, budget: PixelBudget, cache: PixelCache | None = None) -> PictureProcessor:
        """The processor of the checkpoint at `path`. Raises InvalidJob as `read_vision_files` does."""
        return PictureProcessor(read_vision_files(path), budget, cache)

    def grid(self, size: tuple[int, int]) -> tuple[int, int, int]:
        """(t, h, w) patches of a picture of (height, width). Raises BadPicture for one that is too long."""
        height, width = fitted_size(size, self.rule.factor, self.budget)
        return 1, height // self.rule.patch_size, width // self.rule.patch_size

    def num_tokens(self, size: tuple[int, int]) -> int:
        """Pad tokens of a picture of (height, width) in a prompt, without start and end."""
        t, h, w = self.grid(size)
        return t * h * w // self.rule.merge_size**2

    def digest(self, encoded: bytes | memoryview) -> bytes:
        """Names a picture, see `picture_digest`."""
        return picture_digest(encoded)

    def pixels(self, encoded: bytes | memoryview) -> Pixels:
        """The resized picture, uint8 [height, width, 3]: decoded once while it is in the cache. Raises BadPicture."""
        return self._cache.get(picture_digest(encoded), lambda: self._resized(encoded))

    def patches(self, encoded: bytes | memoryview) -> Patches:
        """What the tower computes with. Raises BadPicture."""
        pixels, rule = self.pixels(encoded), self.rule
        height, width = pixels.shape[0] // rule.patch_size, pixels.shape[1] // rule.patch_size
        values = np.stack([self._values[i][pixels[..., i]] for i in range(CHANNELS)])
        merged = (height // rule.merge_size, rule.merge_size, rule.patch_size)
        parts = values.reshape(CHANNELS, *merged, width // rule.merge_size, *merged[1:])
        # channel, h, h_merged, h_pixel, w, w_merged, w_pixel -> h, w, h_merged, w_merged, channel, h_pixel, w_pixel
        parts = parts.transpose(1, 4, 2, 5, 0, 3, 6)[:, :, :, :, :, None]
        frames = np.broadcast_to(parts, (*parts.shape[:5], rule.temporal_patch_size, *parts.shape[6:]))
        return Patches(frames.reshape(height * width, -1), np.array([1, height, width], np.int64))

    def read_ahead(self, pictures: Sequence[bytes | memoryview]) -> None:
        """Begin to decode pictures in threads; what is wrong with one is raised by who asks for it."""
        self._cache.begin((picture_digest(encoded), partial(self._resized, encoded)) for encoded in pictures)

    def _resized(self, encoded: bytes | memoryview) -> Pixels:
        from PIL import Image

        pixels = decode(encoded)
        height, width = fitted_size((pixels.shape[0], pixels.shape[1]), self.rule.factor, self.budget)
        if pixels.shape[:2] == (height, width):
            return pixels
        image = Image.fromarray(pixels).resize((width, height), resample=Image.Resampling(self.rule.resample))
        return np.asarray(image)


@cache
def shared_processor(path: str, budget: PixelBudget) -> PictureProcessor:
    """The one processor of a checkpoint in this process: data, rollout and training decode a picture once together."""
    return PictureProcessor.load(path, budget)


def _values_of_bytes(rule: PatchRule) -> NDArray[np.float32]:
    """[3, 256]: the value of every byte in each channel, rounded in the order in which transformers does it."""
    scaled = (np.arange(256, dtype=np.float64) * rule.scale).astype(np.float32)
    mean, std = np.array(rule.mean, np.float32), np.array(rule.std, np.float32)
    result: NDArray[np.float32] = (scaled[None] - mean[:, None]) / std[:, None]
    return result
