"""A stand-in of W&B's server on this machine: as much of it as `wandb sync` of an offline run needs."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rljob_api.tests import http_server

ENTITY = "team"


@dataclass
class WandBRun:
    """What was sent of one run."""

    project: str = ""
    display_name: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    history: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By line."""
    exit_codes: list[int] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)

    @property
    def points(self) -> list[dict[str, Any]]:
        return [self.history[line] for line in sorted(self.history)]


@dataclass
class WandBServer:
    url: str = ""
    runs: dict[str, WandBRun] = field(default_factory=dict)
    artifacts: list[str] = field(default_factory=list)
    """Names of those that are complete."""
    contents: dict[str, bytes] = field(default_factory=dict)
    """Files of artifacts, by `artifact/path`."""

    def run(self, name: str) -> WandBRun:
        return self.runs.setdefault(name, WandBRun())


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        server: WandBServer = self.server.wandb
        body, path = json.loads(self._body() or b"{}"), self.path.partition("?")[0]
        streamed = re.fullmatch(r"/files/[^/]+/[^/]+/([^/]+)/file_stream", path)
        if streamed:
            _stream(server.run(streamed[1]), body)
            self._answer({})
            return
        name = re.search(r"(?:query|mutation)\s+(\w+)", body.get("query", ""))
        answer = ANSWERS.get(name[1] if name else "")
        if answer is None:
            self._answer({"errors": [{"message": f"no answer to {name[1] if name else path}"}]})
            return
        self._answer({"data": answer(server, body.get("variables") or {})})

    def do_PUT(self) -> None:
        kind, _, rest = self.path.strip("/").partition("/")
        server: WandBServer = self.server.wandb
        if kind == "run-files":
            name, _, file = rest.partition("/")
            server.run(name).files[file] = self._body()
        else:
            server.contents[rest] = self._body()
        self._answer({})

    def _body(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def _answer(self, body: dict[str, Any]) -> None:
        text = json.dumps(body).encode()
        self.send_response(200)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(text))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        pass


def _stream(run: WandBRun, body: dict[str, Any]) -> None:
    history = body.get("files", {}).get("wandb-history.jsonl")
    if history:
        lines = enumerate(history["content"], history["offset"])
        run.history |= {number: json.loads(line) for number, line in lines}
    if body.get("complete"):
        run.exit_codes.append(body["exitcode"])


def _upsert(server: WandBServer, asked: dict[str, Any]) -> dict[str, Any]:
    run = server.run(asked["name"])
    run.project, run.display_name = asked.get("project") or run.project, asked.get("displayName") or run.display_name
    run.config |= json.loads(asked.get("config") or "{}")
    project = {"id": "p", "name": run.project, "entity": {"id": "e", "name": ENTITY}}
    bucket = {"id": f"id-{asked['name']}", "name": asked["name"], "displayName": run.display_name, "project": project}
    rest = {"description": None, "config": json.dumps(run.config), "sweepName": None}
    return {
        "upsertBucket": {"bucket": bucket | rest | {"historyLineCount": len(run.history)}, "inserted": not run.history}
    }


def _resumed(server: WandBServer, asked: dict[str, Any]) -> dict[str, Any]:
    run, name = server.runs.get(asked["name"]), asked["name"]
    if run is None:
        return {"model": {"id": "p", "name": asked["project"], "entity": {"id": "e", "name": ENTITY}, "bucket": None}}
    counts = {"logLineCount": 0, "historyLineCount": len(run.history), "eventsLineCount": 0}
    tails = {"historyTail": json.dumps([json.dumps(point) for point in run.points[-1:]]), "eventsTail": "[]"}
    bucket = {"id": f"id-{name}", "name": name, "summaryMetrics": "{}", "displayName": run.display_name, "tags": []}
    bucket |= {"config": json.dumps(run.config), "notes": None, "wandbConfig": json.dumps({"t": 1})}
    entity = {"id": "e", "name": ENTITY}
    return {"model": {"id": "p", "name": asked["project"], "entity": entity, "bucket": bucket | counts | tails}}


def _run_files(server: WandBServer, asked: dict[str, Any]) -> dict[str, Any]:
    urls = [{"name": name, "uploadUrl": f"{server.url}/run-files/{asked['run']}/{name}"} for name in asked["files"]]
    return {"createRunFiles": {"runID": asked["run"], "uploadHeaders": [], "files": urls}}


def _artifact(server: WandBServer, asked: dict[str, Any]) -> dict[str, Any]:
    name = asked["input"]["artifactCollectionName"]
    artifact = {"id": name, "state": "PENDING", "artifactSequence": {"id": "s", "latestArtifact": None}}
    return {"createArtifact": {"artifact": artifact}}


def _manifest(server: WandBServer, asked: dict[str, Any]) -> dict[str, Any]:
    key = "createArtifactManifest" if "artifactID" in asked else "updateArtifactManifest"
    name = asked.get("artifactID") or asked["artifactManifestID"]
    url = f"{server.url}/artifacts/{name}/manifest"
    return {key: {"artifactManifest": {"id": name, "file": {"id": "f", "uploadUrl": url, "uploadHeaders": []}}}}


def _artifact_files(server: WandBServer, asked: dict[str, Any]) -> dict[str, Any]:
    def node(file: dict[str, Any]) -> dict[str, Any]:
        path = f"{file['artifactID']}/{file['name']}"
        url = {"storagePath": path, "uploadUrl": f"{server.url}/artifacts/{path}", "uploadHeaders": []}
        return {"node": url | {"uploadMultipartUrls": None, "artifact": {"id": file["artifactID"]}}}

    return {"createArtifactFiles": {"files": {"edges": [node(file) for file in asked["input"]["artifactFiles"]]}}}


def _commit(server: WandBServer, asked: dict[str, Any]) -> dict[str, Any]:
    server.artifacts.append(asked["artifactID"])
    return {"commitArtifact": {"artifact": {"id": asked["artifactID"], "digest": "d"}}}


VIEWER = {"id": "u", "entity": ENTITY, "username": "me", "email": "", "flags": "{}", "teams": {"edges": []}}
ANSWERS = {
    "Viewer": lambda server, asked: {"viewer": VIEWER},
    "ServerFeaturesQuery": lambda server, asked: {"serverInfo": {"features": []}},
    "RunResumeStatus": _resumed,
    "UpsertBucket": _upsert,
    "CreateRunFiles": _run_files,
    "MarkRunFilesUploaded": lambda server, asked: {"markRunFilesUploaded": {"success": True}},
    "CreateArtifact": _artifact,
    "CreateArtifactManifest": _manifest,
    "UpdateArtifactManifest": _manifest,
    "CreateArtifactFiles": _artifact_files,
    "CommitArtifact": _commit,
    "XXHashDigestsEnabled": lambda server, asked: {"entity": {"xxhashDigestsEnabled": False}},
    "FetchArtifactDigestAlgorithm": lambda server, asked: {"project": {"artifactType": None}},
    "OrgFeatureFlags": lambda server, asked: {"organization": {"featureFlags": []}},
}


@contextmanager
def wandb_server() -> Iterator[WandBServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.wandb = WandBServer(url=f"http://127.0.0.1:{server.server_port}")
    with http_server.serving(server):
        yield server.wandb
