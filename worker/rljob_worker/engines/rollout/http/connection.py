"""Calls of a server, many at once, in an event loop of a thread of its own."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import deque
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, TypeVar

import aiohttp

from rljob_api.vocabulary import keys
from rljob_worker.errors import EngineBroken, InvalidJob, RLJobError

MOST_CONNECTIONS = 256
"""Calls beyond them wait here."""
CONNECT_SECONDS = 30.0
RETRY_SECONDS = 1.0
SHOWN_CHARACTERS = 500

Answer = Mapping[str, Any]
Result = TypeVar("Result")


class ServerConnection:
    """Belongs to one engine. Its methods are for one thread, `wake` for any."""

    def __init__(self, url: str, token: str | None, timeout_seconds: float) -> None:
        """token: sent as `Authorization: Bearer`. timeout_seconds: how long the server may say nothing to a call."""
        self.url, self._timeout_seconds = url.rstrip("/"), timeout_seconds
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._changed = threading.Condition()
        self._finished: deque[tuple[int, Answer | RLJobError]] = deque()
        self._is_woken = False
        self._calls: dict[int, asyncio.Task[None]] = {}
        """In the loop's thread."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rollout-server", daemon=True)
        self._thread.start()
        self._session = self._run(self._opened())

    # ---- one call after another

    def require_healthy(self, path: str, seconds: float) -> None:
        """Wait until the server answers, for so long. Raises EngineBroken, or InvalidJob where it refuses us."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                self._run(self._asked("GET", path, None))
                return
            except EngineBroken:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(RETRY_SECONDS)

    def post(self, path: str, body: Mapping[str, Any]) -> Answer:
        """Raises InvalidJob for what the server refuses, EngineBroken for a server that fails."""
        return self._run(self._asked("POST", path, body))

    # ---- many at once

    def start(self, number: int, path: str, body: Mapping[str, Any]) -> None:
        """Begin a call, whose answer `finished` gives by its number, which no other call has had."""
        self._loop.call_soon_threadsafe(self._begin, number, path, body)

    def cancel(self, numbers: Iterable[int]) -> None:
        """End calls. Nothing comes of them any more, unless it has come."""
        if cancelled := list(numbers):
            self._run(self._cancelled(cancelled))

    def finished(self) -> list[tuple[int, Answer | RLJobError]]:
        """Wait for answers, or errors in their place; none where `wake` was called."""
        with self._changed:
            self._changed.wait_for(lambda: self._finished or self._is_woken)
            result = list(self._finished)
            self._finished.clear()
        return result

    @property
    def is_woken(self) -> bool:
        """Whether `wake` was called since the last `sleep_on`."""
        return self._is_woken

    def wake(self) -> None:
        """Let `finished` return."""
        with self._changed:
            self._is_woken = True
            self._changed.notify_all()

    def sleep_on(self) -> None:
        """Forget that it was woken."""
        with self._changed:
            self._is_woken = False

    def close(self) -> None:
        """End every call. Idempotent."""
        if self._loop.is_closed():
            return
        self._run(self._cancelled(list(self._calls)))
        self._run(self._session.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # ---- in the loop's thread

    def _run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _opened(self) -> aiohttp.ClientSession:
        timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS, sock_read=self._timeout_seconds)
        connector = aiohttp.TCPConnector(limit=MOST_CONNECTIONS)
        return aiohttp.ClientSession(connector=connector, timeout=timeout, headers=self._headers)

    def _begin(self, number: int, path: str, body: Mapping[str, Any]) -> None:
        self._calls[number] = self._loop.create_task(self._called(number, path, body))

    async def _called(self, number: int, path: str, body: Mapping[str, Any]) -> None:
        result: Answer | RLJobError
        try:
            result = await self._asked("POST", path, body)
        except RLJobError as error:
            result = error
        except Exception as error:  # of aiohttp, such as of an answer in a charset that there is not
            result = EngineBroken(f"{self.url + path}: {type(error).__name__}: {error}")
        finally:
            self._calls.pop(number, None)
        with self._changed:
            self._finished.append((number, result))
            self._changed.notify_all()

    async def _cancelled(self, numbers: Iterable[int]) -> None:
        tasks = [self._calls[number] for number in numbers if number in self._calls]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _asked(self, method: str, path: str, body: Mapping[str, Any] | None) -> Answer:
        url = self.url + path
        try:
            async with self._session.request(method, url, json=body, allow_redirects=False) as response:
                text = await response.text(errors="replace")
        except TimeoutError:
            raise EngineBroken(f"{url}: no answer within {self._timeout_seconds:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise EngineBroken(f"{url}: {type(error).__name__}: {error}") from error
        if response.status == 200:
            return _object(url, text)
        words = f"{url} answers {response.status}: {text[:SHOWN_CHARACTERS].strip()}"
        if response.status in (401, 403):
            raise InvalidJob(f"rollout.server: {words}; its token is read from {keys.ROLLOUT_SERVER_TOKEN}")
        if 400 <= response.status < 500 and response.status not in (408, 429):
            raise InvalidJob(f"rollout.server: {words}")
        raise EngineBroken(words)


def _object(url: str, text: str) -> Answer:
    """The JSON object of an answer; empty where the answer is."""
    if not text.strip():
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise EngineBroken(f"{url}: its answer is not JSON: {error}") from None
    return value if isinstance(value, dict) else {"value": value}
