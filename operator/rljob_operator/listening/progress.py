"""`ProgressReader`: asks a pod how far its job is."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import aiohttp

from rljob_operator.observing.progress import MAX_ANSWER_BYTES, progress_of
from rljob_operator.observing.values import MAX_MESSAGE_LENGTH, Unreadable, words
from rljob_operator.states.situation.progress import ProgressAnswer, Unreachable


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

    async def read(self, address: str) -> ProgressAnswer | Unreachable:
        """What `address` (`host:port`) answers."""
        assert self._session is not None, "enter the context manager first"
        try:
            async with self._session.get(f"http://{address}/progress", allow_redirects=False) as response:
                if response.status != 200:
                    return Unreachable(f"http://{address}/progress answered {response.status}")
                body = await _whole(response)
        except TimeoutError:
            return Unreachable(f"http://{address}/progress did not answer within {self._timeout_seconds:g} s")
        except (aiohttp.ClientError, OSError) as error:
            return Unreachable(words(f"http://{address}/progress: {error}", MAX_MESSAGE_LENGTH))
        if body is None:
            return Unreachable(f"http://{address}/progress answered more than {MAX_ANSWER_BYTES} bytes")
        return _parsed(address, body)


async def _whole(response: aiohttp.ClientResponse) -> bytes | None:
    """All segments of an answer; None for one that is too long."""
    body = bytearray()
    async for segment in response.content.iter_any():
        body += segment
        if len(body) > MAX_ANSWER_BYTES:
            return None
    return bytes(body)


def _parsed(address: str, body: bytes) -> ProgressAnswer | Unreachable:
    try:
        return progress_of(body)
    except Unreadable as error:
        return Unreachable(f"http://{address}/progress answered what is no progress: {error}")
