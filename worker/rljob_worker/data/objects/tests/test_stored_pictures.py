"""Pictures on a real S3 server: beside the data and elsewhere, absent, and too large."""

from __future__ import annotations

import pytest

from rljob_worker.data import picture_files
from rljob_worker.data.objects.tests.clock import Clock, patience
from rljob_worker.data.picture_files import PictureFiles
from rljob_worker.errors import BadData
from rljob_worker.storage.tests.s3_server import s3_bucket


@pytest.fixture
def s3(monkeypatch):
    with s3_bucket("data", monkeypatch) as server:
        yield server


def read(values):
    files = PictureFiles("s3://data/d/t.jsonl", "images", retry_policy=patience(Clock()))
    return files.read(values, lambda i: f"row {i + 1}")


def test_pictures_of_a_store_are_read_in_the_order_of_rows(s3):
    s3.put("data/d/x/1.png", b"one")
    s3.put("data/other/2.png", b"two")
    rows = [["x/1.png", b"own"], None, "s3://data/other/2.png", ["s3://data/other/2.png", "x/1.png"]]
    assert read(rows) == [[b"one", b"own"], [], [b"two"], [b"two", b"one"]]


def test_a_picture_that_is_not_in_the_store_is_named_with_its_row(s3):
    s3.put("data/d/x/1.png", b"one")
    with pytest.raises(BadData, match=r"row 2: the picture s3://data/d/x/2.png: not there"):
        read(["x/1.png", "x/2.png"])


def test_a_picture_that_is_too_large_is_not_read(s3, monkeypatch):
    monkeypatch.setattr(picture_files, "MOST_BYTES", 2)
    s3.put("data/d/1.png", b"one")
    with pytest.raises(BadData, match=r"row 1: the picture s3://data/d/1.png has 3 bytes; at most 2"):
        read(["1.png"])
