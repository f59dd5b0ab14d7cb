"""Videos for tests, made here: animations by Pillow, files by PyAV."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image

from rljob_worker.vision.tests.picture_files import pixels_of


def frames_of(num_frames: int, height: int = 28, width: int = 28, seed: int = 0) -> list[np.ndarray]:
    """Random frames, no two alike."""
    return [pixels_of(height, width, seed=1000 * seed + frame) for frame in range(num_frames)]


def animation(
    frames: list[np.ndarray], milliseconds: int | list[int] = 250, format: str = "PNG", **options: Any
) -> bytes:
    """An animated PNG, WEBP or GIF; the first two are lossless here."""
    file, images = io.BytesIO(), [Image.fromarray(frame) for frame in frames]
    options = options | ({"lossless": True} if format == "WEBP" else {})
    images[0].save(file, format, save_all=True, append_images=images[1:], duration=milliseconds, loop=0, **options)
    return file.getvalue()


def video_file(frames: list[np.ndarray], format: str = "mp4", codec: str = "mpeg4", rate: int = 4) -> bytes:
    """A file as FFmpeg writes it; RGB in `ffv1` is lossless."""
    import av

    file = io.BytesIO()
    with av.open(file, "w", format=format) as container:
        stream = container.add_stream(codec, rate=rate)
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = "bgr0" if codec == "ffv1" else "yuv420p"
        for pixels in frames:
            for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")):
                container.mux(packet)
        container.mux(list(stream.encode()))
    return file.getvalue()
