"""As much of Azure's blob service as reading needs, on loopback, and in its own ways: tags are quoted in the headers of
a blob and bare in a listing."""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from rljob_api.tests.http_server import serving

DATE = "Fri, 05 Jul 2019 09:21:28 GMT"


class AzureServer:
    """blobs: `container/folder/file`, of one account.   refuses: whether it takes nobody's key."""

    def __init__(self, account):
        self.account = account
        self.blobs = {}
        self.refuses = False

    def answer(self, path, query, span, if_match):
        """Status, headers and body."""
        if self.refuses:
            return error("403", "AuthenticationFailed")
        container, _, name = path.removeprefix(f"/{self.account}/").partition("/")
        if not any(key.startswith(f"{container}/") for key in self.blobs):
            return error("404", "ContainerNotFound")
        if query.get("comp") == ["list"]:
            return 200, {}, self.listing(container, query.get("prefix", [""])[0])
        if f"{container}/{name}" not in self.blobs:
            return error("404", "BlobNotFound")
        return self.blob(self.blobs[f"{container}/{name}"], span, if_match)

    def blob(self, body, span, if_match):
        tag = f'"{tag_of(body)}"'
        if if_match not in (None, tag):
            return error("412", "ConditionNotMet")
        headers = {"ETag": tag, "Last-Modified": DATE}
        if span is None:
            return 200, headers, body
        first, last = map(int, span.removeprefix("bytes=").split("-"))
        return 206, headers | {"Content-Range": f"bytes {first}-{last}/{len(body)}"}, body[first : last + 1]

    def listing(self, container, prefix):
        result = sorted(
            (name, body)
            for key, body in self.blobs.items()
            for home, _, name in [key.partition("/")]
            if home == container and name.startswith(prefix)
        )
        blobs = "".join(
            f"<Blob><Name>{escape(name)}</Name><Properties><Last-Modified>{DATE}</Last-Modified><Etag>{tag_of(body)}"
            f"</Etag><Content-Length>{len(body)}</Content-Length><Content-Type>text/plain</Content-Type>"
            "<BlobType>BlockBlob</BlobType></Properties></Blob>"
            for name, body in result
        )
        return f"<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker /></EnumerationResults>".encode()


def tag_of(body):
    return f"0x{hashlib.sha256(body).hexdigest()[:15].upper()}"


def error(status, code):
    return int(status), {}, f"<Error><Code>{code}</Code><Message>No.</Message></Error>".encode()


@contextmanager
def azure_account(account, monkeypatch):
    """A server of an account, to which the environment of this process leads."""
    azure_server = AzureServer(account)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            url = urlsplit(self.path)
            status, headers, body = azure_server.answer(
                unquote(url.path), parse_qs(url.query), self.headers.get("Range"), self.headers.get("If-Match")
            )
            self.send_response(status)
            for name, value in ({"Content-Length": len(body)} | headers).items():
                self.send_header(name, str(value))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, *words):
            pass

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as url:
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"{url}/{account}")
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")
        yield azure_server
