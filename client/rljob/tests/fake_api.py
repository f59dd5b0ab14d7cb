"""An API server of RLJobs, pods and ConfigMaps over HTTP, and a kubeconfig that leads there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from rljob_api.tests import http_server

TOKEN = "secret-token"
JOBS = "/apis/rljob.dev/v1alpha1/namespaces/team/rljobs"
PODS = "/api/v1/namespaces/team/pods"


class FakeApi:
    """Objects by path. `refuse`: status and words that every request is answered with whose path holds `refuses`, while
    set; `status_of_new`: what every object is created with."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.logs: dict[str, str] = {}
        self.refuse: tuple[int, str] | None = None
        self.refuses = ""
        self.status_of_new: dict[str, Any] = {}
        self.requests: list[tuple[str, str, dict[str, list[str]]]] = []
        self._versions = 0

    def put(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """As created, or changed, with what the server adds."""
        self._versions += 1
        metadata = {"uid": f"uid-{self._versions}", "creationTimestamp": "2026-01-31T12:00:00Z", **body["metadata"]}
        self.objects[path] = {**body, "metadata": {**metadata, "resourceVersion": str(self._versions)}}
        return self.objects[path]

    def answer(self, method: str, url: str, body: Any, headers: Any) -> tuple[int, Any]:
        parts = urlsplit(url)
        path, query = parts.path, parse_qs(parts.query)
        self.requests.append((method, path, query))
        if headers.get("authorization") != f"Bearer {TOKEN}":
            return 401, {"message": "Unauthorized"}
        if self.refuse is not None and self.refuses in path:
            return self.refuse[0], {"message": self.refuse[1]}
        if path in self.logs:
            return 200, self.logs[path]
        if method == "POST":
            return self._create(path, body)
        if path in self.objects:
            return self._change(method, path, body)
        result = [item for key, item in self.objects.items() if key.rpartition("/")[0] == path]
        if method == "GET" and (result or path.endswith(("/rljobs", "/pods"))):
            return 200, {"items": [item for item in result if _matches(item, query)]}
        return 404, {"message": f"{path} not found"}

    def _create(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        key = f"{path}/{body['metadata']['name']}"
        if key in self.objects:
            return 409, {"message": "already exists"}
        return 201, self.put(key, {"status": self.status_of_new, **body})

    def _change(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if method == "DELETE":
            return 200, self.objects.pop(path)
        if method == "PATCH":
            assert body is not None
            old = self.objects[path]
            metadata = {**old["metadata"], **body.get("metadata", {})}
            spec = {"spec": {**old["spec"], **body["spec"]}} if "spec" in body else {}
            self.put(path, {**old, **spec, "metadata": metadata})
        return 200, self.objects[path]


def _matches(body: dict[str, Any], query: dict[str, list[str]]) -> bool:
    wanted = dict(word.split("=") for word in query.get("labelSelector", [""])[0].split(",") if word)
    return wanted.items() <= body["metadata"].get("labels", {}).items()


@contextmanager
def serving(api: FakeApi, folder: Path) -> Iterator[Path]:
    """A kubeconfig with the contexts `here`, of namespace `team`, and `elsewhere`, where nobody answers."""

    class Handler(BaseHTTPRequestHandler):
        def _handle(self) -> None:
            length = int(self.headers.get("content-length", 0))
            body = json.loads(self.rfile.read(length)) if length else None
            status, result = api.answer(self.command, self.path, body, self.headers)
            text = result.encode() if isinstance(result, str) else json.dumps(result).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PATCH = do_DELETE = _handle

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with http_server.serving(server):
        yield kubeconfig(folder, server.server_port)


def kubeconfig(folder: Path, port: int) -> Path:
    """A file with both contexts."""
    path = folder / "kubeconfig"
    clusters = [("here", f"http://127.0.0.1:{port}"), ("elsewhere", "http://127.0.0.1:9")]
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "here",
                "clusters": [{"name": name, "cluster": {"server": url}} for name, url in clusters],
                "users": [{"name": "me", "user": {"token": TOKEN}}],
                "contexts": [
                    {"name": name, "context": {"cluster": name, "user": "me", "namespace": "team"}}
                    for name, _ in clusters
                ],
            }
        )
    )
    return path
