"""From encoded pictures and videos to the patches that a vision tower takes: one implementation for rollout and
training.

    processor = PictureProcessor(read_vision_files(path), PixelBudget(1024, 589824))
    processor.shape(encoded).num_tokens     tokens of the picture in a prompt
    processor.patches(encoded)              what the tower computes with

Values are those of `Qwen2VLImageProcessorPil` of transformers, bit for bit, of every frame as of a picture. An engine
with a processor of its own is given `pixels`, which are already of the size that its processor would choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from rljob_worker.errors import InvalidJob, WrongField
from rljob_worker.vision.checkpoint_files import PatchRule, VisionFiles, read_vision_files
from rljob_worker.vision.frame_sampling import SampledFrames, VideoBudget, sampled_frames
from rljob_worker.vision.pictures import BadPicture, Pixels, decode, picture_digest, read_header
from rljob_worker.vision.pixel_cache import PixelCache
from rljob_worker.vision.sizes import PixelBudget, fitted_size
from rljob_worker.vision.videos import decode_frames, is_video, read_video_header

CHANNELS = 3


@dataclass(frozen=True, slots=True)
class PictureShape:
    """How a model sees a picture or a video, known before its pixels are decoded."""

    grid: tuple[int, int, int]
    """Patches: by frames, rows and columns."""
    num_tokens: int
    """Pad tokens in a prompt, without start and end."""
    video: SampledFrames | None = None
    """What is sampled of a video; None of a picture."""


@dataclass(frozen=True, slots=True, eq=False)
class Patches:
    """A picture, or the frames of a video, as a vision tower takes it."""

    pixel_values: NDArray[np.float32]
    """[patches, 3 * temporal_patch_size * patch_size ** 2]; patches that are merged are neighbours."""
    grid_thw: NDArray[np.int64]
    """[3]: frames / temporal_patch_size, rows and columns of patches."""
    is_video: bool = False
    seconds: float = 0.0
    """From the frames of a patch to those of the next, of a video."""

    @property
    def num_patches(self) -> int:
        return len(self.pixel_values)


@dataclass(frozen=True, slots=True, eq=False)
class _Decoded:
    """What is kept of a picture or a video."""

    pixels: Pixels
    """uint8 [height, width, 3], or of a video [frames, height, width, 3]."""
    video: SampledFrames | None = None

    @property
    def nbytes(self) -> int:
        return self.pixels.nbytes


class PictureProcessor:
    """Resizes pictures and frames and cuts them into patches. Safe to call from several threads.

    budget: pixels of a resized picture. videos: what a model sees of videos; None for a job without. Raises WrongField
    for a budget below what a single token stands for, InvalidJob for a model without a token for videos.
    """

    def __init__(
        self,
        files: VisionFiles,
        budget: PixelBudget,
        cache: PixelCache[_Decoded] | None = None,
        videos: VideoBudget | None = None,
    ) -> None:
        self.rule, self.tokens, self.budget, self.videos = files.patches, files.tokens, budget, videos
        self._cache = PixelCache[_Decoded]() if cache is None else cache
        _require_token("data.image.maxPixels", budget.max_pixels, files.patches.factor**2, "pixels")
        if videos is not None:
            _require_token("data.video.maxPixels", videos.pixels.max_pixels, files.patches.factor**2, "pixels")
            _require_token("data.video.maxFrames", videos.max_frames, files.patches.temporal_patch_size, "frames")
            if files.tokens.video_pad is None:
                raise InvalidJob("config.json of the model has no video_token_id; leave data.videosColumn out")
        self._values = _values_of_bytes(files.patches)

    @staticmethod
    def load(
        path: str, budget: PixelBudget, cache: PixelCache[_Decoded] | None = None, videos: VideoBudget | None = None
    ) -> PictureProcessor:
        """The processor of the checkpoint at `path`. Raises InvalidJob as `read_vision_files` does."""
        return PictureProcessor(read_vision_files(path), budget, cache, videos)

    def grid(self, size: tuple[int, int]) -> tuple[int, int, int]:
        """(t, h, w) patches of a picture of (height, width). Raises BadPicture for one that is too long."""
        height, width = fitted_size(size, self.rule.factor, self.budget)
        return 1, height // self.rule.patch_size, width // self.rule.patch_size

    def num_tokens(self, size: tuple[int, int]) -> int:
        """Pad tokens of a picture of (height, width) in a prompt, without start and end."""
        t, h, w = self.grid(size)
        return t * h * w // self.rule.merge_size**2

    def shape(self, encoded: bytes | memoryview) -> PictureShape:
        """From the headers of a picture or a video. Raises BadPicture; InvalidJob where the decoder of a video is not
        installed."""
        if not is_video(encoded):
            size = read_header(encoded).size
            return PictureShape(self.grid(size), self.num_tokens(size))
        budget, header = self._of_videos(), read_video_header(encoded)
        sampled = sampled_frames(header, budget, self.rule.temporal_patch_size)
        height, width = fitted_size(header.size, self.rule.factor, budget.pixels)
        grid = (len(sampled.times), height // self.rule.patch_size, width // self.rule.patch_size)
        return PictureShape(grid, grid[0] * grid[1] * grid[2] // self.rule.merge_size**2, sampled)

    def digest(self, encoded: bytes | memoryview) -> bytes:
        """Names a picture, see `picture_digest`."""
        return picture_digest(encoded)

    def pixels(self, encoded: bytes | memoryview) -> Pixels:
        """The resized picture, uint8 [height, width, 3], or the frames of a video, [frames, height, width, 3]: decoded
        once while they are in the cache. Raises BadPicture."""
        return self._decoded(encoded).pixels

    def patches(self, encoded: bytes | memoryview) -> Patches:
        """What the tower computes with. Raises BadPicture."""
        decoded = self._decoded(encoded)
        pixels, video = decoded.pixels, decoded.video
        if video is not None:
            return Patches(*self._cut(pixels), is_video=True, seconds=video.seconds)
        frames = np.broadcast_to(pixels, (self.rule.temporal_patch_size, *pixels.shape))
        return Patches(*self._cut(frames))

    def _cut(self, frames: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Patches and grid of frames [frames, height, width, 3], as many as whole patches hold."""
        rule, (num_frames, height, width, _) = self.rule, frames.shape
        grid = (num_frames // rule.temporal_patch_size, height // rule.patch_size, width // rule.patch_size)
        values = np.stack([self._values[i][frames[..., i]] for i in range(CHANNELS)])
        merged = [(side // rule.merge_size, rule.merge_size, rule.patch_size) for side in grid[1:]]
        parts = values.reshape(CHANNELS, grid[0], rule.temporal_patch_size, *merged[0], *merged[1])
        # channel, t, frame, h, h_merged, h_pixel, w, w_merged, w_pixel
        # -> t, h, w, h_merged, w_merged, channel, frame, h_pixel, w_pixel
        parts = parts.transpose(1, 3, 6, 4, 7, 0, 2, 5, 8)
        return parts.reshape(grid[0] * grid[1] * grid[2], -1), np.array(grid, np.int64)

    def read_ahead(self, pictures: Sequence[bytes | memoryview]) -> None:
        """Begin to decode pictures in threads; what is wrong with one is raised by who asks for it."""
        self._cache.begin((picture_digest(encoded), partial(self._resized, encoded)) for encoded in pictures)

    def _decoded(self, encoded: bytes | memoryview) -> _Decoded:
        return self._cache.get(picture_digest(encoded), lambda: self._resized(encoded))

    def _resized(self, encoded: bytes | memoryview) -> _Decoded:
        if not is_video(encoded):
            return _Decoded(self._fitted(decode(encoded), self.budget))
        sampled, budget = self.shape(encoded).video, self._of_videos()
        assert sampled is not None, "a video"
        frames = decode_frames(encoded, sampled.frames, lambda pixels: self._fitted(pixels, budget.pixels))
        return _Decoded(frames, sampled)

    def _fitted(self, pixels: Pixels, budget: PixelBudget) -> Pixels:
        from PIL import Image

        height, width = fitted_size((pixels.shape[0], pixels.shape[1]), self.rule.factor, budget)
        if pixels.shape[:2] == (height, width):
            return pixels
        image = Image.fromarray(pixels).resize((width, height), resample=Image.Resampling(self.rule.resample))
        return np.asarray(image)

    def _of_videos(self) -> VideoBudget:
        if self.videos is None:
            raise BadPicture("this is a video, and the job shows none; write data.videosColumn, or a picture")
        return self.videos


@cache
def shared_processor(path: str, budget: PixelBudget, videos: VideoBudget | None = None) -> PictureProcessor:
    """The one processor of a checkpoint in this process: data, rollout and training decode a picture once together."""
    return PictureProcessor.load(path, budget, videos=videos)


def _require_token(field: str, value: int, least: int, unit: str) -> None:
    if value < least:
        raise WrongField(
            f"{field}: {value} is less than one token of the model stands for, {least} {unit}; write {least} or more",
            field,
        )


def _values_of_bytes(rule: PatchRule) -> NDArray[np.float32]:
    """[3, 256]: the value of every byte in each channel, rounded in the order in which transformers does it."""
    scaled = (np.arange(256, dtype=np.float64) * rule.scale).astype(np.float32)
    mean, std = np.array(rule.mean, np.float32), np.array(rule.std, np.float32)
    result: NDArray[np.float32] = (scaled[None] - mean[:, None]) / std[:, None]
    return result
