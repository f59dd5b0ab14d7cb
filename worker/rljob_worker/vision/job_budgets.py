"""What a job says of pictures and videos, as the processor takes it."""

from __future__ import annotations

from rljob_api.v1alpha1 import DataSpec
from rljob_worker.vision.frame_sampling import VideoBudget
from rljob_worker.vision.sizes import PixelBudget


def picture_budget(data: DataSpec) -> PixelBudget:
    """The size of each picture."""
    return PixelBudget(data.image.min_pixels, data.image.max_pixels)


def video_budget(data: DataSpec) -> VideoBudget | None:
    """What is seen of each video; None for a job without."""
    if data.videos_column is None:
        return None
    video = data.video
    return VideoBudget(PixelBudget(video.min_pixels, video.max_pixels), video.frames_per_second, video.max_frames)
