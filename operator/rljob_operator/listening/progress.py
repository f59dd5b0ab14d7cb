"""`ProgressPolls`: asks the lead pods of jobs how far they are, now and then and beside the reconciles."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import aiohttp

from rljob_operator.guard import Guard
from rljob_operator.observing.progress import MAX_ANSWER_BYTES, progress_of
from rljob_operator.observing.values import MAX_MESSAGE_LENGTH, Unreadable, text_value
from rljob_operator.reporting.logs import log_context
from rljob_operator.states.situation.facts import ProgressAnswer, UnreachableLead
from rljob_operator.vocabulary.key import Key

_SILENT_FACTOR = 3
"""How much more seldom a pod is asked that does not answer: it costs a time-out each time."""

Read = Callable[[str], Awaitable[ProgressAnswer | UnreachableLead]]


class ProgressReader:
    """Reads `/progress` of pods, each within `timeout_seconds`.  Use as a context manager."""

    def __init__(self, timeout_seconds: float = 2.0) -> None:
        self._timeout_seconds = timeout_seconds
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            # A pod lives at one address for one attempt, and is asked rarely: connections are not worth keeping.
            connector=aiohttp.TCPConnector(force_close=True),
            # A pod could send a few bytes that unpack to more memory than there is.
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=self._timeout_seconds),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    async def read(self, address: str) -> ProgressAnswer | UnreachableLead:
        """What `address` (`host:port`) answers."""
        assert self._session is not None, "enter the context manager first"
        try:
            async with self._session.get(f"http://{address}/progress", allow_redirects=False) as response:
                if response.status != 200:
                    return UnreachableLead(f"http://{address}/progress answered {response.status}")
                body = await _whole(response)
        except TimeoutError:
            return UnreachableLead(f"http://{address}/progress did not answer within {self._timeout_seconds:g} s")
        except (aiohttp.ClientError, OSError) as error:
            return UnreachableLead(text_value(f"http://{address}/progress: {error}", MAX_MESSAGE_LENGTH))
        if body is None:
            return UnreachableLead(f"http://{address}/progress answered more than {MAX_ANSWER_BYTES} bytes")
        return _parsed(address, body)


async def _whole(response: aiohttp.ClientResponse) -> bytes | None:
    """All segments of an answer; None for one that is too long."""
    body = bytearray()
    async for segment in response.content.iter_any():
        body += segment
        if len(body) > MAX_ANSWER_BYTES:
            return None
    return bytes(body)


def _parsed(address: str, body: bytes) -> ProgressAnswer | UnreachableLead:
    try:
        return progress_of(body)
    except Unreadable as error:
        return UnreachableLead(f"http://{address}/progress answered something other than progress: {error}")


class ProgressPolls:
    """`follow` a job's lead pod; `on_answer` is called when there is something to take.  Call `run` as a task.

    No reconcile waits for an answer, and at most `concurrency` pods are asked at once: however many do not answer, the
    others' jobs are looked at as ever.
    """

    def __init__(
        self,
        read: Read,
        on_answer: Callable[[Key], None],
        *,
        interval_seconds: float = 10.0,
        concurrency: int = 32,
        unanswered_polls: int = 3,
        guard: Guard | None = None,
    ) -> None:
        """`unanswered_polls`: how often in a row a pod may fail to answer before that is reported."""
        self._read = read
        self._on_answer = on_answer
        self._interval_seconds = interval_seconds
        self._concurrency = concurrency
        self._unanswered_polls = unanswered_polls
        self._guard = guard or Guard()
        self._followed: dict[Key, _Followed] = {}
        self._due: asyncio.Queue[_Followed] = asyncio.Queue()

    def follow(self, key: Key, address: str) -> ProgressAnswer | UnreachableLead | None:
        """Ask `address` from now on; the answer that came since this was last called, if one did."""
        followed = self._followed.get(key)
        if followed is None or followed.address != address:
            followed = self._followed[key] = _Followed(key, address)
            self._due.put_nowait(followed)
        answer, followed.answer = followed.answer, None
        return answer

    def leave(self, key: Key) -> None:
        """Ask no more."""
        self._followed.pop(key, None)

    async def run(self) -> None:
        """Ask until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._concurrency):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            followed = await self._due.get()
            if self._is_current(followed):
                await self._ask(followed)

    async def _ask(self, followed: _Followed) -> None:
        """What goes wrong with one pod is an answer that did not come; the others are asked as ever."""
        answer: ProgressAnswer | UnreachableLead = UnreachableLead(
            f"http://{followed.address}/progress could not be read"
        )
        with log_context(followed.key):
            with self._guard.around("progress", followed.key):
                answer = await self._read(followed.address)
            if self._is_current(followed):
                with self._guard.around("progress", followed.key):
                    self._take(followed, answer)

    def _is_current(self, followed: _Followed) -> bool:
        return self._followed.get(followed.key) is followed

    def _take(self, followed: _Followed, answer: ProgressAnswer | UnreachableLead) -> None:
        followed.num_unanswered = followed.num_unanswered + 1 if isinstance(answer, UnreachableLead) else 0
        # A worker that has just ended, or is about to listen, does not answer either.
        is_silent = followed.num_unanswered >= self._unanswered_polls
        pause = self._interval_seconds * (_SILENT_FACTOR if is_silent else 1)
        asyncio.get_running_loop().call_later(pause, self._due.put_nowait, followed)
        if is_silent or not followed.num_unanswered:
            followed.answer = answer
            self._on_answer(followed.key)


@dataclass(eq=False)
class _Followed:
    key: Key
    address: str
    answer: ProgressAnswer | UnreachableLead | None = None
    num_unanswered: int = 0
