"""Small pictures for people who read samples."""

from __future__ import annotations

import base64
import io

from rljob_worker.vision.pictures import decode

SIDE_PIXELS = 192
"""Pixels of the longer side of a thumbnail, at most."""

_QUALITY = 70


def thumbnail_url(encoded: bytes) -> str:
    """A picture as a small JPEG in a data URL, a few kilobytes. Raises BadPicture."""
    from PIL import Image

    image = Image.fromarray(decode(encoded))
    image.thumbnail((SIDE_PIXELS, SIDE_PIXELS))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=_QUALITY)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()
