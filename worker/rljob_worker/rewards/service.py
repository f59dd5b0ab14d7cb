"""A model that is asked over HTTP: calls of several rows, a bounded number of them at once.

    POST URL                {"rows": [{"prompt": ..., "response": ..., ...}, ...]}
    200                     {"rewards": [1.0, {"reward": 0.5, "truncated": 1.0}, ...]}      one for each row, in order

Rows of one call fail together; a reward's `onError` says what follows for each of them.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rljob_worker.rewards.access import ServiceAccess

if TYPE_CHECKING:
    import aiohttp

Row = Mapping[str, Any]

SHOWN_CHARACTERS = 200
"""Characters shown of an answer that is an error."""


class ServiceError(RuntimeError):
    """A service that does not answer, or does not answer what was asked."""


class ServiceAway(ServiceError):
    """It may answer later: it cannot be reached, or has failed (5xx)."""


@dataclass(slots=True)
class Use:
    """What calls of a service have taken since the last look."""

    requests: int = 0
    errors: int = 0
    """Requests that failed."""
    seconds: float = 0.0
    """From the first byte of a request to the last of its answer, over all of them."""
    rows: int = 0
    queue_seconds: float = 0.0
    """That rows waited until one was free to be asked for, over all of them."""


@dataclass(slots=True)
class _Asked:
    row: Row
    answer: asyncio.Future[Any]
    shares: Sequence[_Asked] = ()
    """The rows of its call, once it is under way."""
    call: asyncio.Task[None] | None = None

    def abandon(self) -> None:
        """Nobody waits for it any more; a call of which that holds for every row makes room for another."""
        if self.call is not None and all(share.answer.done() for share in self.shares):
            self.call.cancel()


class Service:
    """What a reward function gets as `service`. Belongs to the event loop that first asks it."""

    def __init__(self, access: ServiceAccess) -> None:
        import aiohttp  # not by rewards that ask nobody; and here, not in the time of the first row

        self._http = aiohttp
        self.name, self.url = access["name"], access["url"].rstrip("/")
        self._token = access["token"]
        self._batch_rows, self._concurrency = access["batch_rows"], access["concurrency"]
        self._waiting: deque[_Asked] = deque()
        self._calls: set[asyncio.Task[None]] = set()
        self._by_proxy = access.get("by_proxy", False)
        self._is_due = False
        self._session: aiohttp.ClientSession | None = None
        self._use = Use()

    @property
    def most_rows(self) -> int:
        """Rows that are asked for at once: what is more would wait, and its time would run."""
        return self._batch_rows * self._concurrency

    def note_row(self, queue_seconds: float) -> None:
        """A row is about to be asked for, after so long a wait."""
        self._use.rows += 1
        self._use.queue_seconds += queue_seconds

    async def reward(self, row: Row) -> Any:
        """The service's reward of a row, which shares a call with others that are asked for at the same time. Raises
        ServiceError."""
        loop = asyncio.get_running_loop()
        asked = _Asked(row, loop.create_future())
        self._waiting.append(asked)
        if not self._is_due:
            self._is_due = True
            loop.call_soon(self._call)
        try:
            return await asked.answer
        except asyncio.CancelledError:
            asked.abandon()
            raise

    async def post(self, body: Any, path: str = "") -> Any:
        """Any other question: the JSON that is answered to the JSON `body` at `path`, such as `/v1/embeddings`. Raises
        ServiceError; ServiceAway where it may be asked again."""
        self._use.requests += 1
        began = time.monotonic()
        try:
            return await self._post(body, path)
        except (ServiceError, asyncio.CancelledError):
            self._use.errors += 1
            raise
        finally:
            self._use.seconds += time.monotonic() - began

    async def close(self) -> None:
        """Give the connections back."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def take_use(self) -> Use:
        """Since the last time."""
        use, self._use = self._use, Use()
        return use

    def _call(self) -> None:
        """Begin as many calls as may be under way."""
        self._is_due = False
        while self._waiting and len(self._calls) < self._concurrency:
            rows = [self._waiting.popleft() for _ in range(min(self._batch_rows, len(self._waiting)))]
            if rows := _open(rows):
                call = asyncio.ensure_future(self._ask(rows))
                for row in rows:
                    row.shares, row.call = rows, call
                self._calls.add(call)
                call.add_done_callback(self._ended)

    def _ended(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        self._call()

    async def _ask(self, asked: Sequence[_Asked]) -> None:
        try:
            rewards = self._rewards(await self.post({"rows": [dict(item.row) for item in asked]}), len(asked))
        except ServiceError as error:
            for item in _open(asked):
                item.answer.set_exception(ServiceError(str(error)))
            return
        for item, reward in zip(asked, rewards, strict=True):
            if not item.answer.done():
                item.answer.set_result(reward)

    def _rewards(self, answer: Any, num_rows: int) -> Sequence[Any]:
        """Raises ServiceError unless there is one for each row."""
        rewards = answer.get("rewards") if isinstance(answer, dict) else None
        if isinstance(rewards, list) and len(rewards) == num_rows:
            return rewards
        self._use.errors += 1
        if isinstance(rewards, list):
            raise ServiceError(f"{self} answers {len(rewards)} rewards to {num_rows} rows")
        raise ServiceError(f'{self} answers {_short(json.dumps(answer))}, not {{"rewards": [...]}}')

    async def _post(self, body: Any, path: str) -> Any:
        if self._session is None:
            self._session = self._http.ClientSession(
                trust_env=self._by_proxy,
                connector=self._http.TCPConnector(limit=self._concurrency),
                timeout=self._http.ClientTimeout(),  # a row's own limit is the reward's `timeoutSeconds`
                headers={"Authorization": f"Bearer {self._token}"} if self._token else {},
            )
        try:
            # a redirection would take the token to wherever it leads
            async with self._session.post(self.url + path, json=body, allow_redirects=False) as response:
                text = await response.text(errors="replace")
        except (self._http.ClientError, OSError) as error:
            raise ServiceAway(f"{self} cannot be reached: {type(error).__name__}: {error}") from error
        if response.status == 401:
            raise ServiceError(f"{self} refuses the token of this job, if it has one (401)")
        if response.status != 200:
            failed = ServiceAway if response.status >= 500 else ServiceError
            raise failed(f"{self} answers {response.status}: {_short(text)}")
        try:
            return json.loads(text)
        except ValueError as error:
            raise ServiceError(f"{self} answers no JSON: {_short(text)}") from error

    def __str__(self) -> str:
        return f"service {self.name} at {self.url}"


async def served(row: Row, *, service: Service) -> Any:
    """What the reward's `service` or `url` says of the row."""
    return await service.reward(row)


def _open(asked: Sequence[_Asked]) -> list[_Asked]:
    """Those whose time is not up."""
    return [item for item in asked if not item.answer.done()]


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
