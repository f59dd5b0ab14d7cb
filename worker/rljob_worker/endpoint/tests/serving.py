"""An endpoint on loopback whose policy says what a test wants, and clients that send bytes."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.endpoint.calls import ChatCall, PolicyTurn, Say, TokenCall
from rljob_worker.endpoint.keys import Registration
from rljob_worker.endpoint.server import AgentEndpoint, EndpointSettings
from rljob_worker.endpoint.task_offers import TaskOffers

CHAT = "/chat/completions"
SAID = PolicyTurn("stop", [1, 2, 3], [7, 8], [-0.5, -0.25], (b"he", b"llo"), content="hello")


class ScriptedPlayer:
    """Says `hello`, with its number where it is asked again; waits for `open` first where there is one."""

    def __init__(self, gate: asyncio.Event | None = None) -> None:
        self.gate, self.calls, self.num_cancelled = gate, list[Any](), 0

    async def chat(self, call: ChatCall, say: Say | None = None) -> PolicyTurn:
        return await self._answer(call)

    async def generate(self, call: TokenCall) -> PolicyTurn:
        return await self._answer(call)

    async def _answer(self, call: Any) -> PolicyTurn:
        self.calls.append(call)
        number = len(self.calls)
        try:
            if self.gate is not None:
                await self.gate.wait()
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        content = "hello" if number == 1 else f"hello {number}"
        return PolicyTurn("stop", SAID.prompt_ids, SAID.token_ids, SAID.log_probs, SAID.token_texts, content)


class Agent:
    """A client with a key."""

    def __init__(self, session: aiohttp.ClientSession, endpoint: AgentEndpoint, key: str, registration: Registration):
        self.session, self.endpoint, self.key, self.registration = session, endpoint, key, registration

    async def post(self, body: Any, path: str = CHAT, **headers: str) -> tuple[int, Any]:
        """Status, and the body as JSON or text."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        is_whole = path.startswith(("/inference", "/rljob"))
        url = self.endpoint.base_url.removesuffix("/v1") + (path if is_whole else "/v1" + path)
        sent = {"Authorization": f"Bearer {self.key}", **{name.replace("_", "-"): v for name, v in headers.items()}}
        async with self.session.post(url, data=io.BytesIO(data), headers=sent) as response:
            text = await response.text()
            return response.status, json.loads(text) if response.content_type == "application/json" else text


def asked(content: str = "hi", **fields: Any) -> dict[str, Any]:
    return {"model": "actor", "messages": [{"role": "user", "content": content}], **fields}


@asynccontextmanager
async def agent_of(player: Any, offers: TaskOffers | None = None, **settings: Any) -> AsyncIterator[Agent]:
    endpoint = AgentEndpoint(EndpointSettings(("actor", "gpt-4o"), **settings), offers)
    await endpoint.start()
    try:
        async with aiohttp.ClientSession() as session, endpoint.keys.registered(player) as (key, registration):
            yield Agent(session, endpoint, key, registration)
    finally:
        await endpoint.close()


def serve(use: Callable[[Agent], Awaitable[None]], player: Any = None, **settings: Any) -> None:
    """Run a test against a server."""

    async def run() -> None:
        async with agent_of(player or ScriptedPlayer(), **settings) as agent:
            await use(agent)

    asyncio.run(run())


async def until(condition: Callable[[], Any]) -> None:
    """Give other coroutines turns until it is so."""
    async with asyncio.timeout(TEST_TIMEOUT_SECONDS):
        while not condition():
            await asyncio.sleep(0.001)


async def raw(agent: Agent, data: bytes, *, ends: bool = False) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which these bytes were sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", agent.endpoint.port)
    writer.write(data)
    if ends:
        writer.write_eof()
    await writer.drain()
    return reader, writer


def request_bytes(agent: Agent, body: bytes, length: int | None = None) -> bytes:
    head = f"POST /v1{CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {agent.key}\r\n"
    return f"{head}Content-Length: {len(body) if length is None else length}\r\n\r\n".encode() + body
