"""`rljob report --serve`: the page of runs that go on, for a browser on this machine."""

from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from rljob_worker.errors import InvalidJob
from rljob_worker.run_page.content import page_data, read_content
from rljob_worker.run_page.page import page

LOOPBACK = "127.0.0.1"


def page_server(directories: Sequence[Path], port: int = 0) -> ThreadingHTTPServer:
    """A server on loopback; port 0: any that is free. Raises InvalidJob for one that is taken."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # a page from elsewhere could have its name resolve to this machine, and read runs through the browser
            if self.headers.get("Host", "").rpartition(":")[0] not in (LOOPBACK, "localhost"):
                self.send_error(403)
            elif self.path == "/":
                self._answer("text/html; charset=utf-8", page(directories, live=True))
            elif self.path == "/data.json":
                self._answer("application/json", page_data(map(read_content, directories)))
            else:
                self.send_error(404)

        def _answer(self, kind: str, text: str) -> None:
            body = text.encode()
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nobody reads it."""

    try:
        return ThreadingHTTPServer((LOOPBACK, port), Handler)
    except OSError as error:
        raise InvalidJob(f"--port {port}: {error.strerror}; choose another one") from None
