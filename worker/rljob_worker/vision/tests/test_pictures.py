"""Encoded pictures: packing, and what is opened, turned upright and refused."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image, ImageOps

from rljob_worker.vision.pictures import (
    FORMATS,
    BadPicture,
    PictureList,
    decode,
    picture_digest,
    prompt_digest,
    read_header,
)
from rljob_worker.vision.tests.picture_files import (
    encoded,
    exif_behind_pixels,
    picture,
    pixels_of,
    png_of_header,
    turned,
)


@pytest.mark.parametrize("pictures", [[], [b"a"], [b"one", b"", b"three"]])
def test_a_packed_list_gives_the_same_bytes_back(pictures: list[bytes]) -> None:
    blob = PictureList.pack(pictures)
    assert [bytes(item) for item in PictureList.unpack(blob)] == pictures
    assert PictureList.count(blob) == len(pictures)


def test_a_packed_list_is_a_count_and_lengths_before_the_bytes() -> None:
    # two pictures of 1 and 2 bytes: 3 numbers of 4 bytes, then 3 bytes
    assert PictureList.pack([b"x", b"yz"]) == bytes([2, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]) + b"xyz"
    assert PictureList.pack([]) == b""


@pytest.mark.parametrize("cut", [slice(None, -1), slice(None, 6)])
def test_a_packed_list_that_lost_bytes_is_refused(cut: slice) -> None:
    with pytest.raises(ValueError, match="bytes"):
        PictureList.unpack(PictureList.pack([b"x", b"yz"])[cut])


def test_digests_name_pictures_and_their_order() -> None:
    a, b = picture(seed=1), picture(seed=2)
    assert picture_digest(a) == picture_digest(memoryview(a)) != picture_digest(b)
    assert len(picture_digest(a)) == 16
    assert prompt_digest(PictureList.pack([a, b])) != prompt_digest(PictureList.pack([b, a]))
    assert prompt_digest(b"") == b""


@pytest.mark.parametrize("format", FORMATS)
def test_every_allowed_format_is_opened(format: str) -> None:
    data = picture(20, 30, format=format)
    header = read_header(data)
    assert (header.format, header.size) == (format, (20, 30))
    assert decode(data).shape == (20, 30, 3) and decode(data).dtype == np.uint8


@pytest.mark.parametrize("format", ["PNG", "BMP", "WEBP"])
def test_lossless_formats_keep_every_pixel(format: str) -> None:
    options = {"lossless": True} if format == "WEBP" else {}
    assert (decode(picture(format=format, **options)) == pixels_of(20, 30)).all()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
def test_a_picture_is_turned_upright(format: str, orientation: int) -> None:
    data = turned(20, 30, orientation, format)
    upright = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    assert (decode(data) == upright).all()
    assert read_header(data).size == upright.shape[:2]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_png_whose_exif_data_is_behind_its_pixels_is_turned_upright(orientation: int) -> None:
    data = exif_behind_pixels(turned(20, 30, orientation, "PNG"))
    upright = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    assert (decode(memoryview(data)) == upright).all()
    assert read_header(data).size == upright.shape[:2]


def test_what_is_transparent_is_white() -> None:
    # a black pixel seen through, then one that is not: alpha 0 and 255
    image = Image.fromarray(np.array([[[0, 0, 0, 0], [0, 0, 0, 255]]], np.uint8))
    assert decode(encoded(image)).tolist() == [[[255, 255, 255], [0, 0, 0]]]


def test_grey_and_palette_become_rgb() -> None:
    grey = Image.fromarray(np.full((2, 2), 7, np.uint8))
    assert decode(encoded(grey)).tolist() == [[[7, 7, 7]] * 2] * 2
    assert decode(encoded(grey.convert("P"), "GIF")).tolist() == [[[7, 7, 7]] * 2] * 2


_IMAGE = Image.fromarray(pixels_of(20, 30))
_FLIPPED = _IMAGE.transpose(Image.Transpose.FLIP_TOP_BOTTOM)
_ANIMATED = {"save_all": True, "append_images": [_FLIPPED]}

REFUSED = {
    "nothing": (b"", "no bytes; write it again"),
    "page": (b"<html><body>404", "a page or a message in place of the picture; name the place of the picture itself"),
    "other format": (encoded(_IMAGE, "TIFF"), "no picture of PNG, JPEG, WEBP, GIF, BMP; .*; write it as PNG or JPEG"),
    "cmyk": (encoded(_IMAGE.convert("CMYK"), "JPEG"), "colours CMYK; write it in RGB"),
    "16 bits grey": (encoded(Image.fromarray(np.zeros((2, 2), np.uint16))), "more than 8 bits"),
    # two rows of two pixels of three 16-bit channels, each row after its filter byte
    "16 bits": (png_of_header(2, 2, 16, (b"\0" + bytes(12)) * 2), "more than 8 bits"),
    "animated gif": (encoded(_IMAGE, "GIF", **_ANIMATED), "animated: it has 2 frames"),
    "animated png": (encoded(_IMAGE, "PNG", **_ANIMATED), "animated: it has 2 frames"),
    "animated webp": (encoded(_IMAGE, "WEBP", **_ANIMATED), "animated: it has 2 frames"),
    "bomb": (png_of_header(30_000, 30_000), "DOS attack; write one of at most 89,478,485"),
    "large": (png_of_header(10_000, 9_000), "at most 89,478,485"),
}


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("case", REFUSED)
def test_what_would_not_be_seen_as_it_is_is_refused_by_its_header(case: str) -> None:
    data, words = REFUSED[case]
    for function in (read_header, decode):
        with pytest.raises(BadPicture, match=words):
            function(data)


@pytest.mark.parametrize("data", [picture()[:-300], picture(64, 64, format="JPEG")[:-600], picture(format="BMP")[:-9]])
def test_an_incomplete_picture_is_refused_when_it_is_decoded(data: bytes) -> None:
    assert read_header(data).format in FORMATS
    with pytest.raises(BadPicture, match="damaged or incomplete"):
        decode(data)


def test_too_many_bytes_are_refused_before_they_are_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rljob_worker.vision.pictures.MOST_BYTES", 10)
    with pytest.raises(BadPicture, match="write one of at most 10"):
        read_header(picture())
