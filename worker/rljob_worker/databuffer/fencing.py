"""Who may talk to a data buffer: token, attempt and plan, shown and checked in every call by Flight middleware."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.flight as flight

from rljob_worker.databuffer.hosts import Host, Worker

MIDDLEWARE = "rljob-fence"
_PREFIX = "x-rljob-"
_LIFE = f"{_PREFIX}life"


@dataclass(frozen=True, slots=True)
class Identity:
    """Who calls. `rank` is the rank in the group; -1 for a data buffer."""

    token: str
    attempt: int
    plan_hash: str
    group: str
    host: int
    rank: int = -1

    @property
    def worker(self) -> Worker:
        return Worker(self.group, self.rank)

    @property
    def pod(self) -> Host:
        return Host(self.group, self.host)

    def headers(self) -> dict[str, str]:
        return {
            f"{_PREFIX}token": self.token,
            f"{_PREFIX}attempt": str(self.attempt),
            f"{_PREFIX}plan": self.plan_hash,
            f"{_PREFIX}group": self.group,
            f"{_PREFIX}host": str(self.host),
            f"{_PREFIX}rank": str(self.rank),
        }

    @staticmethod
    def from_headers(headers: Mapping[str, Sequence[str]]) -> Identity:
        value = {name: (headers.get(_PREFIX + name) or [""])[0] for name in _NAMES}
        numbers = {name: int(value[name]) if value[name].lstrip("-").isdecimal() else -1 for name in _NUMBERS}
        return Identity(
            value["token"], numbers["attempt"], value["plan"], value["group"], numbers["host"], numbers["rank"]
        )


_NUMBERS = ("attempt", "host", "rank")
_NAMES = ("token", "attempt", "plan", "group", "host", "rank")


def refusal(caller: Identity, ours: Identity) -> str | None:
    """Why `caller` may not talk to us, or None. The token is compared in constant time and never shown."""
    who = f"{caller.group or 'a stranger'}-{caller.host}"
    if not hmac.compare_digest(caller.token.encode(), ours.token.encode()):
        return f"{who} does not have the token of this job"
    if caller.attempt != ours.attempt:
        return f"{who} is of attempt {caller.attempt}, this data buffer serves attempt {ours.attempt}"
    if caller.plan_hash != ours.plan_hash:
        return f"{who} runs plan {caller.plan_hash[:12]}, this data buffer serves plan {ours.plan_hash[:12]}"
    return None


class Fence(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Server side: refuses before any handler runs.

    `life` tells one process from the next at the same address: a data buffer that was restarted has lost its rows, and
    a client that knew the one before must hear of it instead of waiting for them.
    """

    def __init__(self, ours: Identity, life: str) -> None:
        super().__init__()
        self._ours = ours
        self._life = life

    def start_call(self, info: Any, headers: Mapping[str, Sequence[str]]) -> Caller:
        caller = Identity.from_headers(headers)
        reason = refusal(caller, self._ours)
        if reason is not None:
            raise flight.FlightUnauthorizedError(reason)
        if headers.get(_LIFE, [self._life]) != [self._life]:
            raise flight.FlightUnauthorizedError("it has restarted, and the rows it held are lost")
        return Caller(caller)


class Caller(flight.ServerMiddleware):  # type: ignore[misc]
    """Tells a handler who calls."""

    def __init__(self, identity: Identity) -> None:
        super().__init__()
        self.identity = identity


class Badge(flight.ClientMiddlewareFactory):  # type: ignore[misc]
    """Client side: shows who we are in every call."""

    def __init__(self, identity: Identity) -> None:
        super().__init__()
        self._headers = identity.headers()

    def expect(self, life: str) -> None:
        """Speak to this process only, and not to one that takes its place."""
        self._headers = {**self._headers, _LIFE: life}

    def start_call(self, info: Any) -> flight.ClientMiddleware:
        return _Shown(self._headers)


class _Shown(flight.ClientMiddleware):  # type: ignore[misc]
    def __init__(self, headers: dict[str, str]) -> None:
        super().__init__()
        self._headers = headers

    def sending_headers(self) -> dict[str, str]:
        return self._headers
