"""Encoded pictures: the bytes of PNG, JPEG, WEBP, GIF and BMP files, as they travel with the prompt of a group.

    column `images`   binary, per group: one packed list of a prompt's pictures, in the order of their places in it
    packed list       number of pictures, then the length of each, all uint32 little-endian, then their bytes
                      an empty value is an empty list

Nothing between the data and the models encodes a picture again: who needs pixels decodes these bytes.
"""

from __future__ import annotations

import hashlib
import io
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rljob_worker.errors import BadData

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

Pixels = NDArray[np.uint8]
"""[height, width, 3]: red, green, blue."""

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""What is opened; decoders of other formats are never asked."""

MOST_PIXELS = 89_478_485
"""Pixels of the largest picture that is decoded: 256 MiB of red, green and blue, where Pillow begins to warn."""

MOST_BYTES = 64 << 20
"""Bytes of the largest encoded picture."""

DIGEST_BYTES = 16

_LENGTH = np.dtype("<u4")
_ORIENTATION = 0x0112
"""The EXIF tag that says how a picture is turned."""
_TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
"""What turns a picture upright, by the value of that tag."""
_SIDEWAYS = (5, 6, 7, 8)
"""Values with which height and width change places."""
_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PNG_CHUNK = struct.Struct(">I4s")
_PNG_CHECKSUM_BYTES = 4


class BadPicture(BadData):
    """A picture that cannot be used; the message says why and what to do, and not which row has it."""


class PictureList:
    """Packs and unpacks the encoded pictures of one prompt."""

    @staticmethod
    def pack(pictures: Sequence[bytes]) -> bytes:
        """The value of the column `images`; nothing for no pictures."""
        if not pictures:
            return b""
        lengths = np.array([len(pictures), *map(len, pictures)], _LENGTH)
        return b"".join([lengths.tobytes(), *pictures])

    @staticmethod
    def unpack(blob: bytes | memoryview) -> list[memoryview]:
        """The encoded pictures, as views into `blob`. Raises ValueError for bytes that `pack` did not write."""
        data = memoryview(blob)
        if not len(data):
            return []
        lengths = _lengths(data)
        starts = np.cumsum([_LENGTH.itemsize * (len(lengths) + 1), *lengths])
        if starts[-1] != len(data):
            raise ValueError(f"a list of pictures has {len(data)} bytes, and its lengths add up to {starts[-1]}")
        return [data[start:end] for start, end in zip(starts[:-1], starts[1:], strict=True)]

    @staticmethod
    def count(blob: bytes | memoryview) -> int:
        """Number of pictures in a packed list."""
        return len(_lengths(memoryview(blob))) if len(blob) else 0


def _lengths(data: memoryview) -> NDArray[np.int64]:
    size = _LENGTH.itemsize
    count = int.from_bytes(data[:size], "little")
    if size * (count + 1) > len(data):
        raise ValueError(f"a list of {count} pictures does not fit into {len(data)} bytes")
    return np.frombuffer(data, _LENGTH, count, offset=size).astype(np.int64)


@dataclass(frozen=True, slots=True)
class PictureHeader:
    """What the beginning of an encoded picture says."""

    format: str
    """One of FORMATS."""
    height: int
    """Pixels, of the picture turned upright."""
    width: int

    @property
    def size(self) -> tuple[int, int]:
        """(height, width)"""
        return self.height, self.width


def picture_digest(encoded: bytes | memoryview) -> bytes:
    """Names a picture by its encoded bytes: equal only for equal pictures, [DIGEST_BYTES]."""
    return hashlib.blake2b(encoded, digest_size=DIGEST_BYTES).digest()


def prompt_digest(blob: bytes | memoryview) -> bytes:
    """Names the pictures of a prompt, in their order: of a packed list, [DIGEST_BYTES]; nothing without pictures."""
    return picture_digest(blob) if len(blob) else b""


def read_header(encoded: bytes | memoryview) -> PictureHeader:
    """Format and size, without decoding pixels. Raises BadPicture for what `decode` refuses by the header alone."""
    return _opened(encoded)[1]


def decode(encoded: bytes | memoryview) -> Pixels:
    """The pixels of a picture, turned upright, 8 bits a channel, on white where it is transparent.

    Raises BadPicture: no picture, a format that is not in FORMATS, damaged, incomplete, several frames, CMYK, 16 bits,
    too large.
    """
    image, _, orientation = _opened(encoded)
    try:
        return np.ascontiguousarray(np.asarray(upright(on_white(image), orientation)))
    except Exception as error:  # what decoders raise for damaged bytes has no common type
        raise BadPicture(f"the picture is damaged or incomplete: {error}; write it again") from error


def _opened(encoded: bytes | memoryview) -> tuple[ImageFile, PictureHeader, int]:
    """An image whose pixels are not decoded yet, what its header says, and its orientation by EXIF."""
    from PIL import Image, UnidentifiedImageError

    if not len(encoded):
        raise BadPicture("the picture has no bytes; write it again")
    if len(encoded) > MOST_BYTES:
        raise BadPicture(f"the picture has {len(encoded):,} bytes; write one of at most {MOST_BYTES:,}")
    try:
        image = Image.open(io.BytesIO(encoded), formats=FORMATS)
        orientation = orientation_of(image, encoded)
        _check_header(image)
        return image, _header(image, orientation), orientation
    except BadPicture:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        what = str(error).rstrip(".")
        raise BadPicture(f"the picture is too large: {what}; write one of at most {MOST_PIXELS:,} pixels") from error
    except UnidentifiedImageError as error:
        begins = bytes(encoded[:16])
        message = f"the bytes are no picture of {', '.join(FORMATS)}; they begin with {begins!r}{_guess(begins)}"
        raise BadPicture(message) from error
    except Exception as error:  # what decoders raise for damaged bytes has no common type
        raise BadPicture(f"the picture is damaged: {error}; write it again") from error


def _guess(begins: bytes) -> str:
    """What bytes that are no picture may be, and what to do about it."""
    if begins.lstrip()[:1] in (b"<", b"{"):
        return ": this is a page or a message in place of the picture; name the place of the picture itself"
    return "; write it as PNG or JPEG"


def _header(image: ImageFile, orientation: int) -> PictureHeader:
    # cameras write MPO: a JPEG, with further pictures behind it that are not looked at
    return PictureHeader("JPEG" if image.format == "MPO" else str(image.format), *upright_size(image, orientation))


def orientation_of(image: ImageFile, encoded: bytes | memoryview) -> int:
    """The value of the EXIF tag; 1 for an upright picture. encoded: what the image was opened from."""
    from PIL.Image import Image

    if image.format == "PNG" and "exif" not in image.info and (exif := _png_exif(encoded)):
        image.info["exif"] = exif
    # not `image.getexif()`: that of a PNG decodes the whole picture to look behind its pixels
    return int(Image.getexif(image).get(_ORIENTATION, 1))


def upright(image: Image, orientation: int) -> Image:
    """The image turned as its EXIF data says."""
    from PIL.Image import Transpose

    turn = _TURNS.get(orientation)
    return image if turn is None else image.transpose(Transpose[turn])


def upright_size(image: Image, orientation: int) -> tuple[int, int]:
    """(height, width) of the image turned as its EXIF data says."""
    return (image.width, image.height) if orientation in _SIDEWAYS else (image.height, image.width)


def _png_exif(encoded: bytes | memoryview) -> bytes | None:
    """The EXIF data of a PNG, wherever it is among the chunks: length, kind, data and a checksum each."""
    at = len(_PNG_SIGNATURE)
    while at + _PNG_CHUNK.size <= len(encoded):
        length, kind = _PNG_CHUNK.unpack_from(encoded, at)
        at += _PNG_CHUNK.size
        if kind == b"eXIf":
            return bytes(encoded[at : at + length])
        at += length + _PNG_CHECKSUM_BYTES
    return None


def _check_header(image: ImageFile) -> None:
    """Raises BadPicture for what would be decoded to something else than what a person sees."""
    if image.width * image.height > MOST_PIXELS:
        size = f"{image.width} x {image.height}"
        raise BadPicture(f"the picture has {size} pixels; write one of at most {MOST_PIXELS:,}")
    num_frames = 1 if image.format == "MPO" else getattr(image, "n_frames", 1)
    if num_frames > 1:
        raise BadPicture(
            f"the picture is animated: it has {num_frames} frames; write one of them, or all into data.videosColumn"
        )
    if image.mode in ("CMYK", "YCbCr", "LAB", "HSV"):
        raise BadPicture(f"the picture has the colours {image.mode}; write it in RGB")
    has_16_bits = image.format == "PNG" and any("16" in str(tile[3]) for tile in image.tile)  # Pillow cuts them to 8
    if image.mode in ("I", "F") or image.mode.startswith("I;16") or has_16_bits:
        raise BadPicture("the picture has more than 8 bits a channel; write it with 8")


def on_white(image: Image) -> Image:
    """In red, green and blue; what is transparent is white."""
    from PIL import Image as pillow

    if not image.has_transparency_data:
        return image.convert("RGB")
    transparent = image.convert("RGBA")
    white = pillow.new("RGBA", transparent.size, (255, 255, 255, 255))
    return pillow.alpha_composite(white, transparent).convert("RGB")
