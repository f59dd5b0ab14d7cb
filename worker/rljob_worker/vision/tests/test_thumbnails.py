"""Small pictures for people."""

import base64

from rljob_worker.vision.pictures import decode
from rljob_worker.vision.tests.picture_files import picture
from rljob_worker.vision.thumbnails import thumbnail_url


def test_a_thumbnail_is_a_small_jpeg_in_proportion() -> None:
    url = thumbnail_url(picture(800, 400))
    head, _, body = url.partition(",")
    assert head == "data:image/jpeg;base64"
    assert decode(base64.b64decode(body)).shape == (192, 96, 3)


def test_a_picture_that_is_small_stays_as_large_as_it_is() -> None:
    assert decode(base64.b64decode(thumbnail_url(picture(20, 30)).partition(",")[2])).shape == (20, 30, 3)
