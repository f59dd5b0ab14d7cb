"""Who may ask the services of a job: whoever has its token. In Ray Serve's proxy, so before any application."""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from rljob_api.vocabulary import keys

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

OPEN_PATHS = ("/-/healthz",)
"""For probes, which have no token."""

CALLBACK = f"{__name__}:middlewares"
"""What `RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH` is set to."""


class TokenGate:
    """Answers 401 in the application's place to a request without `Authorization: Bearer TOKEN`."""

    def __init__(self, app: Application, token: str) -> None:
        assert token, "a gate without a token is open"
        self._app = app
        self._wanted = f"Bearer {token}".encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope.get("path") in OPEN_PATHS or self._is_known(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await _refuse(send)

    def _is_known(self, scope: Message) -> bool:
        found = [value for name, value in scope.get("headers", ()) if name == b"authorization"]
        return len(found) == 1 and hmac.compare_digest(found[0], self._wanted)


async def _refuse(send: Send) -> None:
    body = json.dumps({"error": "the token of the job is missing or is another's"}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def middlewares() -> list[Any]:
    """For Ray Serve's proxy."""
    from starlette.middleware import Middleware

    token = Path(os.environ[keys.ENV_SERVICES_TOKEN_FILE]).read_text().strip()
    return [Middleware(TokenGate, token=token)]
