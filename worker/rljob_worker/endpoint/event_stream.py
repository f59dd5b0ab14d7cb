"""An answer as server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

from aiohttp import web

from rljob_worker.endpoint import answers
from rljob_worker.endpoint.calls import PolicyTurn, RequestRefused
from rljob_worker.endpoint.retries import SharedCall


class EventStream:
    """One response. It begins when there is something to say, so that an early refusal is an answer of its own."""

    def __init__(self, request: web.Request, write_seconds: float, alive_seconds: float) -> None:
        """write_seconds: that a client may take to read a part. alive_seconds: after which a stream that has nothing to
        say yet says so in a comment."""
        self._request, self._write_seconds, self._alive_seconds = request, write_seconds, alive_seconds
        self.response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"},
        )

    async def send(
        self,
        waiting: Coroutine[Any, Any, tuple[SharedCall, PolicyTurn]],
        chunks: Callable[[PolicyTurn], Iterable[answers.Body]],
    ) -> SharedCall:
        """Send an answer once it is whole: nobody can tell a call of a tool from words before.

        Raises RequestRefused before anything is sent; later the refusal is an event, and is raised as ConnectionError,
        as is a client that does not read.
        """
        task = asyncio.ensure_future(waiting)
        try:
            while not (await asyncio.wait({task}, timeout=self._alive_seconds))[0]:
                await self._write(b": waiting\n\n")
            shared, answer = task.result()
        except RequestRefused as error:
            if not self.response.prepared:
                raise
            await self._write(_event(answers.refusal(error)))
            raise ConnectionResetError(error.message) from None
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError, RequestRefused):
                await task
        await self._write(b"".join([*map(_event, chunks(answer)), b"data: [DONE]\n\n"]))
        await self.response.write_eof()
        return shared

    async def _write(self, data: bytes) -> None:
        async with reading(self._request, self._write_seconds):
            if not self.response.prepared:
                await self.response.prepare(self._request)
            await self.response.write(data)


@asynccontextmanager
async def reading(request: web.Request, seconds: float) -> AsyncIterator[None]:
    """Write inside for so long. Raises ConnectionError for a client that does not read by then; what waits for it in
    buffers is dropped."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("the client does not read its answer") from None


def _event(body: answers.Body) -> bytes:
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"
