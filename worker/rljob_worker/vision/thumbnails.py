"""Small pictures for people who read samples."""

from __future__ import annotations

import base64
import io

import numpy as np

from rljob_worker.vision.pictures import Pixels, decode
from rljob_worker.vision.videos import decode_frames, is_video, read_video_header

SIDE_PIXELS = 192
"""Pixels of the longer side of a picture or a frame, at most."""

VIDEO_FRAMES = 4
"""Frames of a video, side by side, from its first to its last one."""

_QUALITY = 70


def thumbnail_url(encoded: bytes) -> str:
    """A picture, or some frames of a video, as a small JPEG in a data URL, a few kilobytes. Raises BadPicture."""
    from PIL import Image

    if is_video(encoded):
        last = len(read_video_header(encoded).times) - 1
        frames = [last * i // (VIDEO_FRAMES - 1) for i in range(VIDEO_FRAMES)]
        image = Image.fromarray(np.concatenate(list(decode_frames(encoded, frames, _small)), axis=1))
    else:
        image = Image.fromarray(_small(decode(encoded)))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=_QUALITY)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()


def _small(pixels: Pixels) -> Pixels:
    from PIL import Image

    image = Image.fromarray(pixels)
    image.thumbnail((SIDE_PIXELS, SIDE_PIXELS))
    return np.asarray(image)
