"""A connection to one server of the Model Context Protocol: it is opened again where the server has ended, and notices
which tools are not what they were at the start."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from rljob_api.v1alpha1.conversation import MCPServerSpec
from rljob_api.vocabulary.quantity import parse_quantity
from rljob_worker.errors import InvalidJob
from rljob_worker.sandbox.calls.programs import Program, ProgramSettings
from rljob_worker.sandbox.targets import CallError, Cause

FRAME_BYTES = 1 << 20
"""What a message of a server may have besides the text of an answer, which JSON makes up to six times as long."""
CALL_KEY = "rljob/call_key"
"""The field of a request's metadata with the key of the call."""
NO_ANSWER = "Server returned an error response"
"""What the SDK's client says of a status of HTTP without an answer in it, with the code of servers' own errors."""
COMPARED_SECONDS = 10.0
"""How often tools are compared with those of the start, while they are called. A server that runs elsewhere may be
another one by the next call, and the connection does not show it."""


class ServerGone(Exception):
    """The server cannot be reached, or has ended."""


class MCPConnection:
    """To one server. The client belongs to a task of its own, which has to enter and leave it."""

    def __init__(
        self,
        spec: MCPServerSpec,
        environment: Mapping[str, str],
        settings: ProgramSettings,
        pythonpath: Sequence[str],
    ) -> None:
        self._spec, self._environment, self._settings, self._pythonpath = spec, environment, settings, pythonpath
        self._most_bytes = parse_quantity(spec.max_output)
        self._program: Program | None = None
        """The server, where it is started here."""
        self._tools: dict[str, str] = {}
        """JSON of each tool's schema, at the start."""
        self._changed: dict[str, str] = {}
        """What is wrong with a tool since, by name."""
        self._compared_at = -math.inf
        self._task: asyncio.Task[None] | None = None
        self._client: asyncio.Future[Any] | None = None
        self._stop = asyncio.Event()

    @property
    def answers_limits(self) -> bool:
        return self._spec.on_limit == "Answer"

    async def open(self) -> list[dict[str, Any]]:
        try:
            client = await self._connected()
        except ServerGone as error:
            raise InvalidJob(f'rollout.conversation.mcpServers: server "{self._spec.name}" {error}') from error
        schemas = await _schemas(client)
        if missing := sorted(set(self._spec.tools) - schemas.keys()):
            raise InvalidJob(
                f'rollout.conversation.mcpServers: server "{self._spec.name}" has no tool {missing[0]!r}; it has '
                f"{', '.join(schemas) or 'none'}"
            )
        chosen = self._spec.tools or tuple(schemas)
        self._tools = {name: json.dumps(schemas[name], sort_keys=True) for name in chosen}
        return [schemas[name] for name in chosen]

    async def call(self, tool: str, arguments: dict[str, Any], key: str) -> tuple[Any, CallError | None]:
        try:
            client = await self._connected()
            async with asyncio.timeout(self._spec.timeout_seconds):
                await self._look_at_tools(client)
                if tool in self._changed:
                    return None, self._error("Died", self._changed[tool])
                result = await client.call_tool(tool, arguments, meta={CALL_KEY: key})
                if result.is_error:  # perhaps the tool is another one now
                    self._compare(await _schemas(client))
            if tool in self._changed:
                return None, self._error("Died", self._changed[tool])
            return self._outcome(result)
        except TimeoutError:
            return None, self._error("TimedOut", f"took longer than {self._spec.timeout_seconds:g} s")
        except ServerGone as error:
            return None, self._error("Died", str(error))
        except Exception as error:  # of the SDK, its transports and their libraries
            if _is_of_call(error):
                return None, CallError("Raised", str(error))
            why = self._program and self._program.why_ended()
            await self.close()
            return None, self._error("Died", f"has ended or restarted: {why or f'{type(error).__name__}: {error}'}")

    async def close(self) -> None:
        """Leave the server; the next call connects again."""
        task, self._task, self._client = self._task, None, None
        self._stop.set()
        if task is not None:
            with suppress(Exception, asyncio.CancelledError):
                await asyncio.wait_for(task, self._spec.timeout_seconds)

    def _error(self, cause: Cause, words: str) -> CallError:
        return CallError(cause, f'server "{self._spec.name}" {words}')

    async def _connected(self) -> Any:
        """The client. Raises ServerGone."""
        if self._client is None:
            self._stop = asyncio.Event()
            self._client = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._hold(self._client, self._stop))
        client = self._client
        try:
            return await asyncio.shield(client)
        except ServerGone:
            if self._client is client:
                await self.close()
            raise

    async def _hold(self, ready: asyncio.Future[Any], stop: asyncio.Event) -> None:
        from mcp.client import Client

        try:
            async with self._transport() as transport, Client(transport) as client:
                self._compare(await _schemas(client))
                ready.set_result(client)
                await stop.wait()
        except BaseException as error:  # also groups of errors of the transports' tasks
            if ready.done():
                raise
            if isinstance(error, InvalidJob):
                ready.set_exception(error)
                return
            words = "; ".join(f"{type(item).__name__}: {item}" for item in _leaves(error))
            ready.set_exception(ServerGone(f"cannot be reached: {words}"))

    @asynccontextmanager
    async def _transport(self) -> AsyncIterator[Any]:
        """What the client is made of."""
        if self._spec.url is not None:
            import httpx2
            from mcp.client.streamable_http import streamable_http_client

            headers = _headers(self._spec, self._environment)
            async with httpx2.AsyncClient(headers=headers, timeout=self._spec.timeout_seconds) as http:
                yield streamable_http_client(self._spec.url, http_client=http)
            return
        from rljob_worker.conversations.targets.mcp_program import program_streams

        owner = f'rollout.conversation.mcpServers: server "{self._spec.name}"'
        self._program = program = Program(owner, self._settings, self._environment, self._pythonpath)
        try:
            yield program_streams(program, FRAME_BYTES + 6 * self._most_bytes)
        finally:
            self._program = None
            program.close()

    async def _look_at_tools(self, client: Any) -> None:
        """Compare them, unless they have been of late."""
        if time.monotonic() - self._compared_at >= COMPARED_SECONDS:
            self._compared_at = time.monotonic()  # calls beside this one need not
            self._compare(await _schemas(client))

    def _compare(self, schemas: Mapping[str, Any]) -> None:
        """Notice which tools are not what they were at the start."""
        self._compared_at, self._changed = time.monotonic(), {}
        for name, before in self._tools.items():
            if name not in schemas:
                self._changed[name] = f"has no tool {name!r} any more"
            elif json.dumps(schemas[name], sort_keys=True) != before:
                self._changed[name] = f"has changed its tool {name!r} since the job began; start the job again"

    def _outcome(self, result: Any) -> tuple[Any, CallError | None]:
        texts = [part.text for part in result.content if part.type == "text"]
        text, shown = "\n".join(texts), [part for part in result.content if part.type == "image"]
        if len(text.encode(errors="replace")) + sum(len(part.data) for part in shown) > self._most_bytes:
            return None, CallError("OutputTooLarge", f"answered more than the {self._most_bytes} bytes that a call may")
        if result.is_error:
            return None, CallError("Raised", text or "the tool failed and does not say why")
        if shown:
            return [_part(part) for part in result.content if part.type in ("text", "image")], None
        if result.content and not texts:
            kinds = ", ".join(sorted({part.type for part in result.content}))
            return None, CallError("NotJson", f"answered {kinds}, which is not text")
        return (text if texts else result.structured_content), None


def _part(part: Any) -> dict[str, Any]:
    """A part of an answer as one of a message."""
    if part.type == "text":
        return {"type": "text", "text": part.text}
    return {"type": "image_url", "image_url": {"url": f"data:{part.mime_type};base64,{part.data}"}}


def _headers(spec: MCPServerSpec, environment: Mapping[str, str]) -> dict[str, str]:
    """Raises ServerGone without the token that the job names."""
    if spec.token_variable is None:
        return {}
    token = environment.get(spec.token_variable, "").strip()
    if not token:
        raise ServerGone(
            f"has no token: tokenVariable {spec.token_variable} is not set in the workers' environment; add it to "
            "`env`, on a cluster from a Secret"
        )
    return {"Authorization": f"Bearer {token}"}


async def _schemas(client: Any) -> dict[str, dict[str, Any]]:
    """Schemas of a server's tools as chat templates take them, by name."""
    schemas: dict[str, dict[str, Any]] = {}
    cursor: str | None = None
    while True:
        page = await client.list_tools(cursor=cursor, cache_mode="bypass")
        for tool in page.tools:
            function = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
            schemas[tool.name] = {"type": "function", "function": function}
        cursor = page.next_cursor
        if not cursor:
            return schemas


def _is_of_call(error: Exception) -> bool:
    """Whether a server has refused or failed one call, rather than that it does not answer: codes of the others are the
    client's own."""
    from mcp import MCPError
    from mcp.types import CONNECTION_CLOSED, INVALID_REQUEST, PARSE_ERROR, REQUEST_TIMEOUT

    of_connection = (CONNECTION_CLOSED, REQUEST_TIMEOUT, INVALID_REQUEST, PARSE_ERROR)
    return isinstance(error, MCPError) and error.code not in of_connection and str(error) != NO_ANSWER


def _leaves(error: BaseException) -> list[BaseException]:
    """The errors of a group of them."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for item in error.exceptions for leaf in _leaves(item)]
    return [error]
