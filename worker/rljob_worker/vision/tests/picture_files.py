"""Pictures for tests, made here: encoded bytes of any format, and files that are wrong in one way."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image


def pixels_of(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Random uint8 [height, width, 3]."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def encoded(image: Image.Image | np.ndarray, format: str = "PNG", **options: Any) -> bytes:
    """An image as the bytes of a file."""
    file = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(file, format, **options)
    return file.getvalue()


def picture(height: int = 20, width: int = 30, seed: int = 0, format: str = "PNG", **options: Any) -> bytes:
    """The bytes of a picture of random pixels."""
    return encoded(pixels_of(height, width, seed), format, **options)


def turned(height: int, width: int, orientation: int, format: str = "JPEG") -> bytes:
    """A picture whose EXIF data says how it is turned."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return picture(height, width, format=format, exif=exif)


def exif_behind_pixels(png: bytes) -> bytes:
    """A PNG with its EXIF data between pixels and end, where some programs write it."""
    start = png.index(b"eXIf") - 4
    end = start + 12 + int.from_bytes(png[start : start + 4])
    last = png.index(b"IEND") - 4
    return png[:start] + png[end:last] + png[start:end] + png[last:]


def png_of_header(width: int, height: int, bits: int = 8, rows: bytes = b"") -> bytes:
    """A PNG in RGB of any size and depth, whatever the pixels that follow. rows: uncompressed, a filter byte before
    each."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, bits, 2, 0, 0, 0)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks
