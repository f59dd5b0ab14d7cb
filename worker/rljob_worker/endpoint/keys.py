"""Keys by which the server knows whose turn a call asks for: one for each trajectory and agent, which dies with it."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rljob_worker.endpoint.calls import RequestRefused, TurnPlayer
from rljob_worker.endpoint.retries import SharedCalls

if TYPE_CHECKING:
    from rljob_worker.endpoint.task_offers import TaskResult

KEY_BYTES = 32
LONGEST_KEY = 256


@dataclass(slots=True, eq=False)
class Registration:
    """An agent that may call."""

    player: TurnPlayer
    calls: SharedCalls = field(default_factory=SharedCalls)
    num_calls: int = 0
    """Calls that were answered."""
    last_refusal: str | None = None
    """Why its last call was refused, if it was."""
    result: asyncio.Future[TaskResult] | None = None
    """How its agent says that the trajectory ended; None where a program says so by its own end."""


class Keys:
    """Those that are good now. They are kept as digests, so that a comparison takes as long for every key."""

    def __init__(self) -> None:
        self._registrations: dict[bytes, Registration] = {}

    @asynccontextmanager
    async def registered(self, player: TurnPlayer) -> AsyncIterator[tuple[str, Registration]]:
        """A new key for an agent, good inside. Calls under way at the end are cancelled."""
        key = secrets.token_urlsafe(KEY_BYTES)
        registration = Registration(player)
        self._registrations[_digest(key)] = registration
        try:
            yield key, registration
        finally:
            del self._registrations[_digest(key)]
            await registration.calls.close()

    def owner(self, authorization: str | None) -> Registration:
        """Whose key a header `Authorization` has. Raises RequestRefused."""
        key = bearer(authorization)
        registration = self._registrations.get(_digest(key)) if len(key) <= LONGEST_KEY else None
        if registration is None:
            message = "this key is unknown: it is not of this endpoint, or its trajectory is over"
            raise RequestRefused(message, status=401, code="invalid_api_key")
        return registration


def bearer(authorization: str | None) -> str:
    """The key in a header `Authorization`. Raises RequestRefused where there is none."""
    scheme, _, key = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not key:
        raise RequestRefused("there is no key: send Authorization: Bearer KEY", status=401, code="invalid_api_key")
    return key.strip()


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
