"""A stand-in of the Hugging Face hub's API on loopback: as much as up- and downloads need, files in a dictionary."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from rljob_api.tests import http_server


@dataclass
class FakeHub:
    """What is there or was uploaded, by model and path."""

    endpoint: str = ""
    models: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Of the main branch."""
    revisions: dict[tuple[str, str], dict[str, bytes]] = field(default_factory=dict)
    """Of others, by model and revision."""
    private: set[str] = field(default_factory=set)
    gated: set[str] = field(default_factory=set)
    """What is shown and not given."""
    token: str = ""
    """What a request has to carry to see models; empty: none."""
    answers: list[int] = field(default_factory=list)
    """Codes of the next answers, in place of what was asked for; 0 says nothing until the server ends."""
    objects: dict[str, bytes] = field(default_factory=dict)
    """Large files by their hash, as Git LFS has them."""
    tokens: set[str] = field(default_factory=set)
    ended: threading.Event = field(default_factory=threading.Event)


class Server(ThreadingHTTPServer):
    """refuses: whatever anybody wants to write."""

    def __init__(self, refuses: bool) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.refuses = refuses
        self.hub = FakeHub(endpoint=f"http://127.0.0.1:{self.server_port}")


class Handler(BaseHTTPRequestHandler):
    """Weights go by Git LFS, everything else within the commit, as on the real one."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        name, _, rest = path.removeprefix("/api/models").strip("/").partition("/resolve/")
        name, tree, asked = re.match(r"(.*?)(?:/(tree|revision)/(.*))?$", name).groups()
        revision, _, file = rest.partition("/")
        models, commit, files = self.server.hub.models, *self._at(name, revision or asked or "main")
        if self.server.hub.answers and (code := self.server.hub.answers.pop(0)) != 200:
            self._send(b"{}", code, {}) if code else self._say_nothing()
        elif name not in models or not self._may_see():
            self._send(b"{}", 404, {"X-Error-Code": "RepoNotFound"})
        elif files is None:
            self._send(b"{}", 404, {"X-Error-Code": "RevisionNotFound"})
        elif name in self.server.hub.gated and rest:
            self._send(b"{}", 403, {"X-Error-Code": "GatedRepo"})
        elif file not in files and rest:
            self._send(b"{}", 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
        elif rest:
            tag = hashlib.sha256(files[file]).hexdigest()
            self._send(files[file], 200, {"X-Repo-Commit": commit, "ETag": f'"{tag}"'})
        elif tree == "tree":
            self._answer([{"type": "file", "path": item, "oid": "0" * 40, "size": len(files[item])} for item in files])
        else:
            self._answer({"siblings": [{"rfilename": item} for item in files], "id": name, "sha": commit})

    def _at(self, name: str, revision: str) -> tuple[str, dict[str, bytes] | None]:
        """The commit of a branch, a tag or itself, and its files."""
        hub = self.server.hub
        if revision in ("main", "0" * 40):
            return "0" * 40, hub.models.get(name)
        for (of, known), files in hub.revisions.items():
            commit = hashlib.sha1(f"{of}@{known}".encode()).hexdigest()
            if of == name and revision in (known, commit):
                return commit, files
        return "", None

    def _may_see(self) -> bool:
        token = self.server.hub.token
        return not token or self.headers.get("Authorization") == f"Bearer {token}"

    def _say_nothing(self) -> None:
        self.server.hub.ended.wait()
        self.close_connection = True

    do_HEAD = do_GET

    def do_PUT(self) -> None:
        self.server.hub.objects[self.path.rpartition("/")[2]] = self._body()
        self._answer({})

    def do_POST(self) -> None:
        self.server.hub.tokens.add(self.headers.get("Authorization", ""))
        body, path = self._body(), self.path.partition("?")[0]
        if self.server.refuses:
            self._answer({"error": "not your model"}, code=403)
            return
        if path == "/api/repos/create":
            self._answer(self._created(json.loads(body)))
        elif path.endswith("/preupload/main"):
            self._answer({"files": [self._kind(item["path"]) for item in json.loads(body)["files"]]})
        elif path.endswith("/info/lfs/objects/batch"):
            objects = [self._place(item) for item in json.loads(body)["objects"]]
            self._answer({"transfer": "basic", "objects": objects})
        elif path.endswith("/commit/main"):
            name = path.removeprefix("/api/models/").removesuffix("/commit/main")
            self._commit(self.server.hub.models[name], [json.loads(line) for line in body.splitlines()])
            url = f"{self.server.hub.endpoint}/{name}/commit/1"
            self._answer({"commitUrl": url, "commitOid": "1" * 40, "hookOutput": ""})
        else:
            self._answer({})

    def _created(self, asked: dict) -> dict:
        hub, name = self.server.hub, asked["name"]
        name = f"{asked['organization']}/{name}" if asked.get("organization") else name
        hub.models.setdefault(name, {})
        hub.private |= {name} if asked.get("private") or asked.get("visibility") == "private" else set()
        return {"url": f"{hub.endpoint}/{name}", "name": name}

    def _commit(self, files: dict[str, bytes], lines: list[dict]) -> None:
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.server.hub.objects[value["oid"]]

    def _kind(self, path: str) -> dict:
        mode = "lfs" if path.endswith(".safetensors") else "regular"
        return {"path": path, "uploadMode": mode, "shouldIgnore": False}

    def _place(self, asked: dict) -> dict:
        action = {"upload": {"href": f"{self.server.hub.endpoint}/objects/{asked['oid']}", "header": {}}}
        return {"oid": asked["oid"], "size": asked["size"], "actions": action}

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, body: dict | list, code: int = 200) -> None:
        self._send(json.dumps(body).encode(), code, {"Content-Type": "application/json"})

    def _send(self, body: bytes, code: int, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(refuses: bool = False) -> Iterator[FakeHub]:
    server = Server(refuses)
    with http_server.serving(server):
        try:
            yield server.hub
        finally:
            server.hub.ended.set()
