"""A stand-in of the part of the Hugging Face Hub that has data sets: what is listed, and ranges of bytes of files."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import huggingface_hub.constants
import huggingface_hub.file_download

from rljob_api.tests import http_server

COMMIT = "c" * 40


@dataclass
class HubData:
    endpoint: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    """By `owner/name/path`."""
    cards: dict[str, dict] = field(default_factory=dict)
    """Front matter of the README of a data set."""
    gated: set[str] = field(default_factory=set)
    token: str = ""
    """What a request has to carry; empty: none."""
    answers: list[int] = field(default_factory=list)
    """Codes of the next answers, in place of what was asked for; 0 says nothing until the server ends."""
    has_ranges: bool = True
    """Without them a file is sent whole, however little was asked for."""
    asked: list[str] = field(default_factory=list)
    """Paths, and ranges."""
    ended: threading.Event = field(default_factory=threading.Event)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        hub: HubData = self.server.hub
        path, span = self.path.partition("?")[0], self.headers.get("Range", "")
        hub.asked.append(f"{path} {span}".strip())
        listing = re.fullmatch(r"/api/datasets/([^/]+/[^/]+)(?:/revision/([^/]+))?", path)
        file = re.fullmatch(r"/datasets/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if not (listing or file):
            self._send(b"{}", 404)
            return
        name, revision = (listing or file).groups()[:2]
        if hub.answers and (code := hub.answers.pop(0)) != 200:
            if not code:
                hub.ended.wait()
            self._send(b"{}", code or 503)
        elif hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            self._send(b"{}", 401, {"X-Error-Code": "RepoNotFound"})
        elif not any(known.startswith(f"{name}/") for known in hub.files):
            self._send(b"{}", 404, {"X-Error-Code": "RepoNotFound"})
        elif revision not in (None, "main", "v1", COMMIT):
            self._send(b"{}", 404, {"X-Error-Code": "RevisionNotFound"})
        elif listing:
            self._send(json.dumps(self._listing(name)).encode(), 200)
        elif name in hub.gated:
            self._send(b"{}", 403, {"X-Error-Code": "GatedRepo"})
        else:
            self._send_range(hub.files[f"{name}/{file[3]}"], span)

    def _listing(self, name: str) -> dict:
        hub: HubData = self.server.hub
        siblings = [
            {
                "rfilename": path.removeprefix(f"{name}/"),
                "size": len(content),
                "blobId": sha256(content).hexdigest()[:40],
            }
            for path, content in hub.files.items()
            if path.startswith(f"{name}/")
        ]
        return {"id": name, "sha": COMMIT, "siblings": siblings, "cardData": hub.cards.get(name, {})}

    def _send_range(self, content: bytes, span: str) -> None:
        if not self.server.hub.has_ranges:
            self._send(content, 200)
            return
        start, _, stop = span.removeprefix("bytes=").partition("-")
        self._send(content[int(start) : int(stop) + 1], 206)

    def _send(self, body: bytes, code: int, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[HubData]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.hub = HubData(endpoint=f"http://127.0.0.1:{server.server_port}")
    with http_server.serving(server):
        try:
            yield server.hub
        finally:
            server.hub.ended.set()


def point_to(endpoint: str, home: str, monkeypatch) -> None:
    """The library reads its variables once, when it is imported."""
    constants = huggingface_hub.constants
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"{endpoint}/{{{template.partition('{')[2]}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", home)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", f"{home}/token")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_TOKEN", raising=False)
