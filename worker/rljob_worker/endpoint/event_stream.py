"""An answer as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from rljob_worker.endpoint import answers
from rljob_worker.endpoint.answers import StreamedAnswer, as_json
from rljob_worker.endpoint.calls import RequestRefused
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

    async def send(self, call: SharedCall, streamed: StreamedAnswer) -> None:
        """Send an answer as it comes, and its calls of tools once it is whole.

        Raises RequestRefused before anything is sent; later the refusal is an event, and is raised as ConnectionError,
        as is a client that does not read.
        """
        try:
            while not call.task.done():
                changed = call.changed
                awaited: set[asyncio.Future[Any]] = {call.task, changed}
                await asyncio.wait(awaited, timeout=self._alive_seconds, return_when=asyncio.FIRST_COMPLETED)
                if call.task.done():
                    break
                await self._write(_events(streamed.more(call.said)) if changed.done() else b": waiting\n\n")
            answer = await call.answer()
        except RequestRefused as error:
            if not self.response.prepared:
                raise
            await self._write(_events([as_json(answers.refusal(error))]))
            raise ConnectionResetError(error.message) from None
        await self._write(_events(streamed.end(answer)) + b"data: [DONE]\n\n")
        await self.response.write_eof()

    async def _write(self, data: bytes) -> None:
        if not data:  # nothing would end the stream
            return
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


def _events(bodies: Iterable[str]) -> bytes:
    return "".join(f"data: {body}\n\n" for body in bodies).encode()
