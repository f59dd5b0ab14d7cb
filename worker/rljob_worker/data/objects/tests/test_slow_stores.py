"""A store that is slow is waited for; requests to one that says nothing any more are retried."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from rljob_api.tests.http_server import serving
from rljob_worker.data.objects.store import Span, Store
from rljob_worker.data.store_retry import StoreRetryPolicy
from rljob_worker.storage import connection
from rljob_worker.storage.address import Address

PIECE = b"x" * 1000
NUM_PIECES = 12


@contextmanager
def dripping(pause_seconds, hangs=0):
    """The address of an S3 server with one object, piece by piece; the first answers hang in the middle.

    Pauses are the server's pace, and nobody waits for their end."""
    never, left = threading.Event(), [None] * hangs

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            size = NUM_PIECES * len(PIECE)
            self.send_response(206 if self.command == "GET" else 200)
            self.send_header("ETag", '"one"')
            self.send_header("Last-Modified", "Fri, 05 Jul 2019 09:21:28 GMT")
            self.send_header("Content-Range", f"bytes 0-{size - 1}/{size}")
            self.send_header("Content-Length", str(size))
            self.end_headers()
            if self.command == "GET":
                self.give()

        do_HEAD = do_GET

        def give(self):
            for number in range(NUM_PIECES):
                if number == NUM_PIECES // 2 and left:
                    left.pop()
                    never.wait()
                    self.close_connection = True
                    return
                never.wait(pause_seconds)
                self.wfile.write(PIECE)

        def log_message(self, *words):
            pass

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as url:
        try:
            yield url
        finally:
            never.set()


@pytest.fixture
def patient(monkeypatch):
    """Reads the object of a server."""
    monkeypatch.setattr(connection, "SILENT_SECONDS", 0.5)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_REGION", "us-east-1")

    def read(url):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        store = Store(Address.of("s3://data/a.jsonl"), StoreRetryPolicy(30.0))
        (file,) = store.list_files()
        return store.read([Span(file, 0, file.size)])

    return read


def test_a_request_may_take_as_long_as_bytes_come(patient, caplog):
    with dripping(0.1) as url:  # 1.2 s in all
        assert patient(url) == [PIECE * NUM_PIECES]
    assert caplog.records == []


def test_a_store_that_falls_silent_in_the_middle_is_asked_again(patient, caplog):
    with dripping(0.0, hangs=1) as url:
        assert patient(url) == [PIECE * NUM_PIECES]
    assert [record.message.split(": ")[0] for record in caplog.records] == ["s3://data/a.jsonl"]
