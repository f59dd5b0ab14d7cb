"""One agent's calls under way and just answered, so that a call that its client repeats is one turn of the policy.

A client repeats a call that it takes for lost, with the same body. Those of OpenAI count repetitions in a header,
others send an `Idempotency-Key`; of a client without either, the same body is a repetition while the first one is under
way or has not reached it. Beyond that the same body is another turn: agents ask again because they want another answer.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from rljob_worker.endpoint.calls import PartialTurn, PolicyTurn, RequestRefused, Say

RETRY_COUNT, IDEMPOTENCY_KEY = "x-stainless-retry-count", "Idempotency-Key"
MOST_ANSWERS = 16
"""Answers that are kept for repetitions, the last ones."""


Make = Callable[[Say], Awaitable[PolicyTurn]]
"""Makes an answer, and tells what there is of it meanwhile."""


class SharedCall:
    """A call that several requests may wait for."""

    def __init__(self, make: Make) -> None:
        self.waiting, self.is_delivered = 0, False
        """Requests that wait; whether the answer was written to a client that still listened."""
        self.said = PartialTurn()
        self.changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when there is more than `said` had; another one is in its place then."""
        self.task = asyncio.ensure_future(_coroutine(make, self._say))
        self.task.add_done_callback(_looked_at)

    async def answer(self) -> PolicyTurn:
        """Raises RequestRefused as `make` does, and when the agent's time is over."""
        try:
            return await asyncio.shield(self.task)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self.task.cancelled() and task is not None and not task.cancelling():
                raise RequestRefused("the trajectory is over", status=409, code="over") from None
            raise

    def _say(self, said: PartialTurn) -> None:
        if said != self.said:
            self.said, changed = said, self.changed
            self.changed = asyncio.get_running_loop().create_future()
            changed.set_result(None)


@dataclass(frozen=True, slots=True)
class CallIdentity:
    """What tells whether a request is a repetition of another one."""

    digest: bytes
    """A digest of route and body."""
    key: str | None
    """The client's own name of the call."""
    retry_count: int | None
    """What a client that counts them sends."""

    @staticmethod
    def of(route: str, body: bytes, headers: Mapping[str, str]) -> CallIdentity:
        """That of one request."""
        count = headers.get(RETRY_COUNT, "")
        digest = hashlib.blake2b(body, digest_size=16, person=route.encode()[-16:]).digest()
        return CallIdentity(digest, headers.get(IDEMPOTENCY_KEY), int(count) if _is_count(count) else None)


class SharedCalls:
    """One agent's. For one event loop."""

    def __init__(self) -> None:
        self._calls: dict[tuple[bytes, str | None], SharedCall] = {}
        """The last call of each body and key, in the order in which they came."""
        self._digests: dict[str, bytes] = {}
        """The body of each key."""

    @contextmanager
    def joined(self, identity: CallIdentity, make: Make) -> Iterator[SharedCall]:
        """A call, made once for all its repetitions, to wait for inside. Cancelled when nobody waits for it any more.

        Raises RequestRefused for a key that names another call.
        """
        call = self._known(identity)
        if call is None:
            call = SharedCall(make)
            self._keep(identity, call)
        call.waiting += 1
        try:
            yield call
        finally:
            call.waiting -= 1
            if not call.waiting and not call.task.done():
                call.task.cancel()

    @property
    def num_waiting(self) -> int:
        """Requests that wait for answers now, repetitions among them."""
        return sum(call.waiting for call in self._calls.values())

    async def close(self) -> None:
        """End what is under way."""
        tasks = [call.task for call in self._calls.values() if not call.task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _known(self, identity: CallIdentity) -> SharedCall | None:
        """The call that a request repeats."""
        if identity.key is not None and self._digests.get(identity.key, identity.digest) != identity.digest:
            raise RequestRefused(f"this {IDEMPOTENCY_KEY} is of a call with another body", status=409, code="conflict")
        call = self._calls.get((identity.digest, identity.key))
        if call is None or call.task.cancelled() or call.task.cancelling():
            return None
        if call.task.done() and call.task.exception() is not None:
            return None
        if identity.key is not None or identity.retry_count:
            return call
        is_lost = not call.is_delivered if call.task.done() else True
        return call if identity.retry_count is None and is_lost else None

    def _keep(self, identity: CallIdentity, call: SharedCall) -> None:
        place = (identity.digest, identity.key)
        self._calls.pop(place, None)
        self._calls[place] = call
        if identity.key is not None:
            self._digests[identity.key] = identity.digest
        over = [place for place, known in self._calls.items() if known.task.done()]
        for place in over[: max(0, len(self._calls) - MOST_ANSWERS)]:
            del self._calls[place]
            if place[1] is not None:
                self._digests.pop(place[1], None)


async def _coroutine(make: Make, say: Say) -> PolicyTurn:
    return await make(say)


def _looked_at(task: asyncio.Task[PolicyTurn]) -> None:
    """An error that nobody waits for any more is nobody's."""
    if not task.cancelled():
        task.exception()


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10
