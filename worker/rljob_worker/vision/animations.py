"""Small animations for people who read samples."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

from rljob_worker.vision.pictures import decode

SIDE_PIXELS = 96
"""Pixels of the longer side of an animation, at most."""
MOST_BYTES = 48 << 10
"""Bytes of an animation, unless its two frames have more."""
_COLOURS = 64
_MILLISECONDS = 125


def animation_url(encoded: Sequence[bytes]) -> str:
    """Pictures of one size, one after another, as an animated PNG in a data URL, some tens of kilobytes; of a long
    series every second one, or fewer. Raises BadPicture."""
    frames = _in_common_colours([_small(picture) for picture in encoded])
    data = _animated(frames, _MILLISECONDS)
    every = 1
    while len(data) > MOST_BYTES and len(frames) > 2:
        every *= 2
        frames = [*frames[:-1:2], frames[-1]]
        data = _animated(frames, every * _MILLISECONDS)
    return "data:image/png;base64," + base64.b64encode(data).decode()


def _small(encoded: bytes) -> Any:
    from PIL import Image

    image = Image.fromarray(decode(encoded))
    image.thumbnail((SIDE_PIXELS, SIDE_PIXELS))
    return image


def _in_common_colours(images: Sequence[Any]) -> list[Any]:
    """The images with one palette: an animated PNG has one for all of its frames."""
    from PIL import Image

    width, height = images[0].size
    strip = Image.new("RGB", (width, height * len(images)))
    for number, image in enumerate(images):
        strip.paste(image, (0, number * height))
    strip = strip.quantize(_COLOURS, dither=Image.Dither.NONE)
    return [strip.crop((0, number * height, width, (number + 1) * height)) for number in range(len(images))]


def _animated(frames: Sequence[Any], milliseconds: int) -> bytes:
    file = io.BytesIO()
    frames[0].save(file, "PNG", save_all=True, append_images=frames[1:], duration=milliseconds, loop=0)
    return file.getvalue()
