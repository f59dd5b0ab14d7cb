"""A scripted API server on loopback: real HTTP, real sockets, no logic."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_operator.cluster.client import ApiCluster
from rljob_operator.cluster.connection import ApiConnection
from rljob_operator.cluster.login import Login
from rljob_operator.cluster.rate_limit import RateLimit
from rljob_operator.cluster.retry_policy import RetryPolicy
from rljob_operator.vocabulary.backoff import Backoff

Object = dict[str, Any]
Responder = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Seen:
    """A request that arrived."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass
class ApiServer:
    """Answers each method and path from its script, in order; the last answer is repeated."""

    url: str = ""
    token: str | None = None
    """When set, other tokens get 401."""
    seen: list[Seen] = field(default_factory=list)
    _scripts: dict[tuple[str, str], list[Responder]] = field(default_factory=dict)

    def on(self, method: str, path: str, *responders: Responder) -> None:
        """Script the answers to `method path`; a watch's method is WATCH."""
        self._scripts[method, path] = list(responders)

    def requests(self, method: str, path: str) -> list[Seen]:
        return [seen for seen in self.seen if (seen.method, seen.path) == (method, path)]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """What the script says."""
        text = await request.text()
        method = "WATCH" if request.query.get("watch") == "true" else request.method
        self.seen.append(
            Seen(method, request.path, dict(request.query), dict(request.headers), json.loads(text) if text else None)
        )
        if self.token is not None and request.headers.get("Authorization", "").lower() != f"bearer {self.token}":
            return status(401, "Unauthorized", "Unauthorized")
        script = self._scripts.get((method, request.path))
        if not script:
            return status(404, "NotFound", f"no script for {method} {request.path}")
        return await (script.pop(0) if len(script) > 1 else script[0])(request)


def status(code: int, reason: str, message: str, **headers: str) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "code": code, "reason": reason, "message": message}
    return web.json_response(body, status=code, headers=headers)


def refuse(code: int, reason: str = "", message: str = "refused", **headers: str) -> Responder:
    async def respond(request: web.Request) -> web.StreamResponse:
        return status(code, reason, message, **headers)

    return respond


def say(body: Object) -> Responder:
    async def respond(request: web.Request) -> web.StreamResponse:
        return web.json_response(body)

    return respond


def page(*items: Object, version: int, continue_: str = "") -> Responder:
    return say({"metadata": {"resourceVersion": str(version), "continue": continue_}, "items": list(items)})


def watch(*events: tuple[str, Object], then: str = "silence") -> Responder:
    """Stream events, then fall silent, end, or break off."""

    async def respond(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        for type_, item in events:
            await response.write(json.dumps({"type": type_, "object": item}).encode() + b"\n")
        if then == "silence":
            await asyncio.sleep(3600)
        if then == "break":
            await break_off(request)
        return response

    return respond


def too_old() -> tuple[str, Object]:
    return "ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version: 1 (9)"}


def bookmark(version: int) -> tuple[str, Object]:
    return "BOOKMARK", {"metadata": {"resourceVersion": str(version)}}


async def break_off(request: web.Request) -> web.StreamResponse:
    """Close the connection without a word."""
    assert request.transport is not None
    request.transport.abort()
    await asyncio.sleep(3600)
    raise AssertionError("the handler is cancelled with its connection")


async def hang(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(3600)
    raise AssertionError("the handler is cancelled with its connection")


@asynccontextmanager
async def api_server() -> AsyncIterator[ApiServer]:
    server = ApiServer()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()


def write_kubeconfig(path: Path, server: ApiServer, token: str = "secret") -> Path:
    """A kubeconfig whose token lies in a file beside it."""
    (path.parent / "token").write_text(token)
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": {"server": server.url}}],
        "users": [{"name": "test", "user": {"tokenFile": str(path.parent / "token")}}],
    }
    path.write_text(yaml.safe_dump(config))
    return path


@dataclass
class Requests:
    """Counts what a client reports."""

    seen: list[tuple[str, str]] = field(default_factory=list)

    def __call__(self, verb: str, code: str) -> None:
        self.seen.append((verb, code))


@asynccontextmanager
async def cluster_of(
    server: ApiServer,
    folder: Path,
    *,
    attempts: int = 3,
    timeout_seconds: float = TEST_TIMEOUT_SECONDS,
    silence_seconds: float = TEST_TIMEOUT_SECONDS,
    requests: Requests | None = None,
) -> AsyncIterator[ApiCluster]:
    """The client under test, with pauses of milliseconds."""
    login = Login(write_kubeconfig(folder / "kubeconfig", server))
    async with ApiConnection(login, requests or Requests(), timeout_seconds) as connection:
        yield ApiCluster(connection, RateLimit(None), RetryPolicy(attempts, Backoff(0.001, 0.01)), silence_seconds)
