"""Who may ask the services of a job: those that have its token; and whether they are healthy, which anybody may ask. In
Ray Serve's proxy, so before any application."""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from rljob_api.vocabulary import keys

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]


class TokenGate:
    """Answers 401 in the application's place to a request without `Authorization: Bearer TOKEN`, and 503 or 200 to
    callers that ask whether the applications are healthy, which Ray Serve's own answer does not say."""

    def __init__(self, app: Application, token: str, healthy: Path) -> None:
        """healthy: a file that is there while they are."""
        assert token, "a gate without a token is open"
        self._app = app
        self._wanted = f"Bearer {token}".encode()
        self._healthy = healthy

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        path = scope.get("path")
        if scope["type"] == "http" and path == keys.PATH_SERVICE_HEALTHY:
            exists = self._healthy.exists()
            await _answer(send, 200 if exists else 503, {"healthy": exists})
        elif scope["type"] == "lifespan" or path == keys.PATH_SERVICE_ALIVE or self._is_known(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await _answer(send, 401, {"error": "the token of the job is missing or is another's"})

    def _is_known(self, scope: Message) -> bool:
        result = [value for name, value in scope.get("headers", ()) if name == b"authorization"]
        return len(result) == 1 and hmac.compare_digest(result[0], self._wanted)


async def _answer(send: Send, status: int, words: Mapping[str, Any]) -> None:
    body = json.dumps(words).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def healthy_file(scratch: Path) -> Path:
    """What says to the gate, which lives in a process of Ray's, that all applications are healthy."""
    return scratch / "healthy"


def middlewares() -> list[Any]:
    """For Ray Serve's proxy."""
    from starlette.middleware import Middleware

    token = Path(os.environ[keys.ENV_SERVICES_TOKEN_FILE]).read_text().strip()
    return [Middleware(TokenGate, token=token, healthy=healthy_file(Path(os.environ[keys.ENV_SERVICES_SCRATCH])))]
