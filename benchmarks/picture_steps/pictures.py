"""Pictures for benchmarks, made from a seed."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image


def photograph(side: int, seed: int, quality: int = 92) -> bytes:
    """A JPEG of side x side pixels with structure at every scale down to four pixels, as photographs have: at 756 about
    0.15 MB."""
    rng = np.random.default_rng(seed)
    image = np.zeros((side, side, 3), np.float32)
    for scale in (4, 16, 64):
        noise = rng.integers(0, 256, (side // scale + 1, side // scale + 1, 3), dtype=np.uint8)
        image += np.asarray(Image.fromarray(noise).resize((side, side), Image.Resampling.BICUBIC)) / 3
    file = io.BytesIO()
    Image.fromarray(image.astype(np.uint8)).save(file, "JPEG", quality=quality)
    return file.getvalue()


def noise(height: int, width: int, seed: int) -> bytes:
    """A PNG of random pixels, three bytes each and a little more: at 590 x 590 1 MB."""
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(values).save(file, "PNG", compress_level=0)
    return file.getvalue()
