"""Environments of an OpenEnv server, version 0.10, by its address.

    environments:
      - name: echo
        run: rljob_worker.conversations.openenv_environment:OpenEnv
        options: {url: "http://echo:8000", action: message, observation: echoed_message}
        network: ["echo:8000"]

Each trajectory has a session of its own, one WebSocket. The package openenv is not needed here.
"""

from __future__ import annotations

import json
from typing import Any

import aiohttp

MOST_BYTES = 16 << 20
"""Length of a message."""


class OpenEnv:
    """One session of a server."""

    def __init__(self, url: str, action: str | None = None, observation: str | None = None) -> None:
        """action: the field of the server's action that gets what the policy says; None: the policy writes the action
        as a JSON object.   observation: the field of its observation that the policy reads; None: all of it."""
        self._url = url.rstrip("/")
        self._action, self._observation = action, observation
        self._http: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None

    async def reset(self, seed: int, **columns: str) -> dict[str, Any]:
        """Begin an episode; columns of the data go with it. Raises ConnectionError, RuntimeError."""
        await self._connect()
        return self._read(await self._ask("reset", {"seed": seed, **columns}))

    async def step(self, text: str) -> dict[str, Any]:
        """Take an action. One that is not what the server takes is for the policy to read."""
        try:
            action = {self._action: text} if self._action is not None else _object(text)
            return self._read(await self._ask("step", action))
        except BadAction as error:
            return {"observation": f"error: {error}", "reward": 0.0, "done": False, "metrics": {"bad_actions": 1}}

    async def close(self) -> None:
        """End the session."""
        if self._socket is not None:
            await self._socket.close()
        if self._http is not None:
            await self._http.close()

    async def _connect(self) -> None:
        if self._socket is None:
            self._http = aiohttp.ClientSession()
            try:
                self._socket = await self._http.ws_connect(f"{self._url}/ws", max_msg_size=MOST_BYTES)
            except (aiohttp.ClientError, OSError) as error:
                raise ConnectionError(f"OpenEnv server {self._url} cannot be reached: {error}") from error

    async def _ask(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        assert self._socket is not None, "reset comes first"
        try:
            await self._socket.send_json({"type": kind, "data": data})
            answer = await self._socket.receive_json()
        except (aiohttp.ClientError, OSError, TypeError) as error:
            raise ConnectionError(f"OpenEnv server {self._url} has ended the session: {error}") from error
        if answer["type"] == "error":
            words = answer["data"].get("message", answer["data"])
            if answer["data"].get("code") == "VALIDATION_ERROR" and kind == "step":
                raise BadAction(words)
            raise RuntimeError(f"OpenEnv server {self._url}: {words}")
        result: dict[str, Any] = answer["data"]
        return result

    def _read(self, data: dict[str, Any]) -> dict[str, Any]:
        observation = data.get("observation", {})
        if self._observation is not None:
            if self._observation not in observation:
                raise RuntimeError(
                    f"OpenEnv server {self._url}: an observation has no {self._observation!r}; it has "
                    f"{', '.join(observation)}"
                )
            observation = observation[self._observation]
        return {"observation": observation, "reward": data.get("reward"), "done": bool(data.get("done"))}


class BadAction(Exception):
    """What the policy said is no action of the server."""


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadAction(f"the action is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadAction("the action is not a JSON object")
    return value
