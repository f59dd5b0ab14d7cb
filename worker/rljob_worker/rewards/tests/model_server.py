"""A server in a thread that answers what a test tells it to."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rljob_api.tests import http_server

Answer = Callable[[Any], tuple[int, str]]


@dataclass
class ModelServer:
    """What was asked, in the order in which it came."""

    answer: Answer
    url: str = ""
    asked: list[Any] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    most_at_once: int = 0
    _now: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def respond(self, path: str, token: str | None, body: Any) -> tuple[int, str]:
        with self._lock:
            self.asked.append(body)
            self.tokens.append(token)
            self.paths.append(path)
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
        try:
            return self.answer(body)
        finally:
            with self._lock:
                self._now -= 1


@contextlib.contextmanager
def serving(answer: Answer) -> Iterator[ModelServer]:
    server = ModelServer(answer)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, text = server.respond(self.path, self.headers["Authorization"], body)
            if not status:  # the connection is dropped
                self.close_connection = True
                return
            data = text.encode()
            self.send_response(status)
            if status == 302:
                self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    with http_server.serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as url:
        server.url = f"{url}/judge"
        yield server


def lengths(body: Any) -> tuple[int, str]:
    """The reward of a row is the length of its response."""
    return 200, json.dumps({"rewards": [len(row["response"]) for row in body["rows"]]})
