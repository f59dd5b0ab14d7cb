"""Animated GIF, PNG and WEBP files as videos, by Pillow."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rljob_worker.vision.frame_sampling import VideoHeader
from rljob_worker.vision.pictures import (
    MOST_PIXELS,
    BadPicture,
    Pixels,
    on_white,
    orientation_of,
    upright,
    upright_size,
)

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

FORMATS = ("GIF", "PNG", "WEBP")
MOST_FRAMES = 2**16
"""Frames of the longest animation that is read."""

_SECONDS = 0.1
"""What a frame is shown that says 0, as browsers do."""


def is_animation(encoded: bytes | memoryview) -> bool:
    """Whether these are a picture of several frames; no frame is decoded for it."""
    begins = bytes(encoded[:16])
    if not (begins[:4] in (b"GIF8", b"\x89PNG") or begins[8:12] == b"WEBP"):
        return False
    try:
        return bool(getattr(_opened(encoded), "n_frames", 1) > 1)
    except Exception:  # what is no picture is said by who opens it as one
        return False


def animation_header(encoded: bytes | memoryview) -> VideoHeader:
    """Size and times of an animation. Raises BadPicture."""
    image, orientation = _checked(encoded)
    seconds = []
    for frame in range(image.n_frames):
        _seek(image, frame)
        seconds.append(image.info.get("duration", 0) / 1000 or _SECONDS)
    ends = np.cumsum(seconds)
    return VideoHeader(*upright_size(image, orientation), (0.0, *map(float, ends[:-1])), float(ends[-1]))


def animation_frames(
    encoded: bytes | memoryview, frames: Sequence[int], resized: Callable[[Pixels], Pixels]
) -> list[Pixels]:
    """Some frames, ascending, each once it was given to `resized`. Raises BadPicture."""
    image, orientation = _checked(encoded)
    result: dict[int, Pixels] = {}
    for frame in range(frames[-1] + 1):
        _seek(image, frame)
        if frame in frames:
            result[frame] = resized(np.ascontiguousarray(np.asarray(upright(on_white(image), orientation))))
    return [result[frame] for frame in frames]


def _opened(encoded: bytes | memoryview) -> ImageFile:
    from PIL import Image

    return Image.open(io.BytesIO(encoded), formats=FORMATS)


def _checked(encoded: bytes | memoryview) -> tuple[Any, int]:
    """An animation none of whose frames is decoded yet, and its orientation by EXIF."""
    image = _opened(encoded)
    num_frames = getattr(image, "n_frames", 1)
    if num_frames > MOST_FRAMES:
        raise BadPicture(f"the video has {num_frames:,} frames; write one of at most {MOST_FRAMES:,}")
    if image.width * image.height > MOST_PIXELS:
        raise BadPicture(
            f"the video has frames of {image.width} x {image.height} pixels; write at most {MOST_PIXELS:,} a frame"
        )
    try:
        return image, orientation_of(image, encoded)
    except Exception as error:  # what EXIF data raises that is damaged has no common type
        raise BadPicture(f"the video is damaged or incomplete: {error}; write it again") from error


def _seek(image: Any, frame: int) -> None:
    try:
        image.seek(frame)
        image.load()
    except Exception as error:  # what decoders raise for damaged bytes has no common type
        raise BadPicture(f"the video is damaged or incomplete: frame {frame}: {error}; write it again") from error
