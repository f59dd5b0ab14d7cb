"""Requests that wait for a model at the same time are one question to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

MOST_REQUESTS = 8
"""Requests of one question, at most, so that nobody waits for all the others."""


@dataclass(slots=True, eq=False)
class _Request:
    rows: Sequence[Any]
    answer: asyncio.Future[list[Any]]


class RequestBatcher:
    """Asks about the rows of all requests that have come while it was asking about others. Ray Serve's own batches are
    closed before the model is free, and wait for more when it is."""

    def __init__(self, ask: Callable[[list[Any]], Awaitable[Sequence[Any]]]) -> None:
        self._ask = ask
        self._waiting: list[_Request] = []
        self._asking = asyncio.Lock()

    async def of(self, rows: Sequence[Any]) -> list[Any]:
        """What is found of each of one request's rows. What is wrong with the rows of one is raised of all that were
        asked about together."""
        request = _Request(rows, asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        try:
            async with self._asking:
                if not request.answer.done():
                    await self._next()
        finally:
            if request in self._waiting:
                self._waiting.remove(request)
        return await request.answer

    async def _next(self) -> None:
        asked, self._waiting = self._waiting[:MOST_REQUESTS], self._waiting[MOST_REQUESTS:]
        try:
            result = iter(await self._ask([row for request in asked for row in request.rows]))
        except asyncio.CancelledError:
            self._waiting = [*asked, *self._waiting]  # the next of them asks again
            raise
        except Exception as error:  # re-raised where the question was asked
            for request in asked:
                request.answer.set_exception(error)
            return
        for request in asked:
            request.answer.set_result([next(result) for _ in request.rows])
