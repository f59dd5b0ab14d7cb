"""`Guard`: an exception ends no more than the piece of work that it came from."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from rljob_operator.vocabulary.backoff import Backoff

logger = logging.getLogger(__name__)

_BACKOFF = Backoff(1.0, 60.0)


class EndedByItself(Exception):
    """A part of the operator that runs for ever has ended."""


class Guard:
    """Logs what a piece of work raised, with what it was about, and counts it."""

    def __init__(
        self,
        count: Callable[[str], None] = lambda part: None,
        backoff: Backoff = _BACKOFF,
        chance: Callable[[], float] = random.random,
        begin: Callable[[str], None] = lambda part: None,
    ) -> None:
        """`count` is given the part of the operator in which something failed, `begin` each part that is to run for
        ever."""
        self._count = count
        self._begin = begin
        self._backoff = backoff
        self._chance = chance

    @contextmanager
    def around(self, part: str, about: object) -> Iterator[None]:
        """Any exception of the block goes no further."""
        try:
            yield
        except Exception:
            self._count(part)
            logger.exception("%s: %s failed", about, part)

    async def for_ever(self, part: str, run: Callable[[], Awaitable[None]]) -> NoReturn:
        """Run a part; where it raises, again after growing pauses.  Raises EndedByItself where it returns."""
        self._begin(part)
        num_failures = 0
        while True:
            began = asyncio.get_running_loop().time()
            has_failed = True
            with self.around(part, "this part of the operator"):
                await run()
                has_failed = False
            if not has_failed:
                raise EndedByItself(f"{part} ended")
            is_fresh = asyncio.get_running_loop().time() - began > self._backoff.last_seconds
            num_failures = 1 if is_fresh else num_failures + 1
            await asyncio.sleep(self._backoff.seconds(num_failures, self._chance()))
