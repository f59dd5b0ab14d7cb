"""Pictures on real servers: beside the data and elsewhere, absent, too large, and pages in their place."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from rljob_api.tests.http_server import serving
from rljob_worker.data import picture_files
from rljob_worker.data.objects.tests.clock import Clock, patience
from rljob_worker.data.picture_files import PictureFiles
from rljob_worker.errors import BadData
from rljob_worker.storage.tests.s3_server import s3_bucket
from rljob_worker.vision.pictures import BadPicture, read_header
from rljob_worker.vision.tests.picture_files import picture


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
    with pytest.raises(
        BadData, match=r"row 2: the picture s3://data/d/x/2.png: not there.*; correct the column 'images'"
    ):
        read(["x/1.png", "x/2.png"])


def test_a_picture_that_is_too_large_is_not_read(s3, monkeypatch):
    monkeypatch.setattr(picture_files, "MOST_BYTES", 2)
    s3.put("data/d/1.png", b"one")
    with pytest.raises(BadData, match=r"row 1: the picture s3://data/d/1.png has 3 bytes; at most 2"):
        read(["1.png"])


ON_THE_WEB = {"/1.png": picture(), "/page.png": b"<html><body>Please log in</body></html>"}


class Website(BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.answer(with_body=False)

    def do_GET(self):
        self.answer(with_body=True)

    def answer(self, with_body):
        content = ON_THE_WEB.get(self.path)
        self.send_response(404 if content is None else 200)
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        if with_body and content is not None:
            self.wfile.write(content)

    def log_message(self, *_):
        pass


def test_web_servers_are_asked_where_the_job_allows_it_and_what_they_lack_is_named():
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Website)) as url:
        files = PictureFiles("t.jsonl", "images", allow_http=True, retry_policy=patience(Clock()))

        def read_from_web(name):
            return files.read([f"{url}/{name}"], lambda i: f"row {i + 1}")

        assert read_from_web("1.png") == [[ON_THE_WEB["/1.png"]]]
        with pytest.raises(
            BadData, match=r"row 1: the picture http://127.0.0.1:\d+/2.png: not there.*; correct the column 'images'"
        ):
            read_from_web("2.png")
        ((page,),) = read_from_web("page.png")
    with pytest.raises(BadPicture, match="a page or a message in place of the picture"):
        read_header(page)
