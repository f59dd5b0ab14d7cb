"""Retries with exponential backoff of requests to a store or the Hub while it is busy or silent."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from rljob_worker.errors import DeadlineExceeded
from rljob_worker.storage.store_errors import StoreErrorKind, error_kind_of, words_of

StoreAnswer = TypeVar("StoreAnswer")

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 20.0

_log = logging.getLogger("rljob.data")


def is_passing(error: Exception) -> bool:
    """Whether a store that answers with this error may answer otherwise later."""
    return error_kind_of(error) is StoreErrorKind.PASSING


@dataclass(frozen=True)
class StoreRetryPolicy:
    """Exponential backoff with full jitter, within a time in all: thousands of ranks that were refused together come
    back one by one.

    total_seconds: from the first failure of a request. Less than the job's deadline, so that the rank which waits for
    the store says why before those that wait for the rank give up.
    """

    total_seconds: float = 300.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    draw: Callable[[float, float], float] = random.uniform

    async def with_retries(
        self,
        what: str,
        ask: Callable[[], Awaitable[StoreAnswer]],
        is_passing: Callable[[Exception], bool] = is_passing,
        words_of: Callable[[Exception], str] = words_of,
    ) -> StoreAnswer:
        """The answer to a question about `what`. Raises DeadlineExceeded (exit 75) with the store's last words; any
        error but a passing one as it is. is_passing, words_of: of errors of what is asked."""
        began: float | None = None
        tries = 0
        while True:
            try:
                return await ask()
            except Exception as error:
                if not is_passing(error):
                    raise
                last = error
            now = self.clock()
            if began is None:
                began = now
                _log.warning("%s: %s; retrying for up to %g s", what, words_of(last), self.total_seconds)
            pause = self.draw(0.0, min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0**tries))
            if now - began + pause > self.total_seconds:
                raise DeadlineExceeded(
                    f"{what}: no success within {self.total_seconds:g} s of retries; its last words: {words_of(last)}"
                ) from last
            await self.sleep(pause)
            tries += 1


DEFAULT_RETRY_POLICY = StoreRetryPolicy()
