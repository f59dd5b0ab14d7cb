"""Which frames of a video a model sees: one rule for rollout and training, whatever the video is stored as.

A video of 10 frames in 5 seconds, of which 2 a second are asked for and 8 are the most:

    frames    0 1 2 3 4 5 6 7 8 9
    sampled   0 1 2 3   5 6 7 8         8 of them: the i-th is 10 * i // 8

As transformers samples for Qwen2.5-VL, at least LEAST_FRAMES of them, and a multiple of what a patch holds.
"""

from __future__ import annotations

from dataclasses import dataclass

from rljob_worker.vision.sizes import PixelBudget

LEAST_FRAMES = 4
"""Frames of a short video, where it has as many."""

_EXACT = 1024
"""Seconds are rounded to this part of one, so that their multiples are exact in float32: positions are made of them."""


@dataclass(frozen=True, slots=True)
class VideoBudget:
    """How many frames of a video a model sees, and how large."""

    pixels: PixelBudget
    """The size of each frame."""
    frames_per_second: float
    max_frames: int


@dataclass(frozen=True, slots=True)
class VideoHeader:
    """What is known of a video before its frames are decoded."""

    height: int
    """Pixels, of frames turned upright."""
    width: int
    times: tuple[float, ...]
    """Seconds from the first frame to each, ascending."""
    duration: float
    """Seconds, with those that the last frame is shown."""

    @property
    def size(self) -> tuple[int, int]:
        """(height, width)"""
        return self.height, self.width


@dataclass(frozen=True, slots=True)
class SampledFrames:
    """The frames of a video that a model sees."""

    frames: tuple[int, ...]
    """Their numbers, ascending; a multiple of the frames of a patch, so that a short video may have one twice."""
    times: tuple[float, ...]
    """Seconds from the beginning to the middle of what each patch holds."""
    seconds: float
    """From one patch to the next."""


def sampled_frames(header: VideoHeader, budget: VideoBudget, multiple: int) -> SampledFrames:
    """multiple: frames of a patch."""
    total = len(header.times)
    wanted = min(max(header.duration * budget.frames_per_second, LEAST_FRAMES), budget.max_frames, total)
    count = max(multiple, int(wanted + 1e-6) // multiple * multiple)
    frames = tuple(total * i // count for i in range(count))
    times = tuple(
        (header.times[frames[i]] + header.times[frames[i + multiple - 1]]) / 2 for i in range(0, count, multiple)
    )
    return SampledFrames(frames, times, round(multiple * header.duration / count * _EXACT) / _EXACT)
