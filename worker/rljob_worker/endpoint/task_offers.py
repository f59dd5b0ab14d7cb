"""Trajectories that wait for agents which live longer than one: an agent takes one, plays it and says how it ended."""

from __future__ import annotations

import asyncio
import hmac
import math
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rljob_worker.endpoint.calls import RequestRefused
from rljob_worker.endpoint.keys import bearer

LONGEST_WAIT_SECONDS = 60.0
"""How long a request for a task may wait for one; agents ask again."""


@dataclass(slots=True, eq=False)
class TaskOffer:
    """A trajectory to play."""

    key: str
    """The agent's for the endpoint, as long as the trajectory lasts."""
    task: Mapping[str, Any]
    """What is to be done, as JSON."""
    taken: asyncio.Event = field(default_factory=asyncio.Event)
    is_over: bool = False
    """Whether nobody waits for its end any more."""


class TaskOffers:
    """Those of one worker, first come first served. For one event loop."""

    def __init__(self, token: str) -> None:
        """token: what agents of the job show, whichever trajectory they ask for."""
        assert token, "without a token anybody could play"
        self._token = token
        self._open: deque[TaskOffer] = deque()
        self._changed = asyncio.Event()

    def require_agent(self, authorization: str | None) -> None:
        """Raises RequestRefused for a header `Authorization` without the token."""
        if not hmac.compare_digest(bearer(authorization).encode("utf-8", "surrogatepass"), self._token.encode()):
            message = "this is not the token of the job's agents: send Authorization: Bearer RLJOB_AGENT_TOKEN"
            raise RequestRefused(message, status=401, code="invalid_api_key")

    @contextmanager
    def offered(self, offer: TaskOffer) -> Iterator[None]:
        """Offer a trajectory inside, until somebody takes it."""
        self.give_back(offer)
        try:
            yield
        finally:
            offer.is_over = True
            if offer in self._open:
                self._open.remove(offer)

    def give_back(self, offer: TaskOffer) -> None:
        """Let somebody else take it, unless it is over."""
        if offer.is_over:
            return
        offer.taken.clear()
        self._open.append(offer)
        self._changed.set()
        self._changed = asyncio.Event()

    async def take(self, seconds: float) -> TaskOffer | None:
        """The trajectory that has waited longest; None where there is none for so long."""
        try:
            async with asyncio.timeout(seconds):
                while not self._open:
                    await self._changed.wait()
        except TimeoutError:
            return None
        offer = self._open.popleft()
        offer.taken.set()
        return offer


def wait_of(body: Mapping[str, Any]) -> float:
    """How long a request for a task waits, in seconds. Raises RequestRefused for what is no such time."""
    value = body.get("wait_seconds", LONGEST_WAIT_SECONDS)
    if not is_number(value) or value < 0:
        raise RequestRefused(f"wait_seconds is {value!r}, not a number from 0 on", param="wait_seconds")
    return min(float(value), LONGEST_WAIT_SECONDS)


@dataclass(frozen=True, slots=True)
class TaskResult:
    """How an agent says that a trajectory ended."""

    reward: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None
    """Why it counts for nothing; None for one that counts."""


def task_result(body: Mapping[str, Any]) -> TaskResult:
    """Raises RequestRefused, which names the field."""
    reward, metrics, error = body.get("reward"), body.get("metrics") or {}, body.get("error")
    if reward is not None and not is_number(reward):
        raise RequestRefused(f"reward is {reward!r}, which is not a finite number", param="reward")
    if not isinstance(metrics, dict) or not all(map(is_number, metrics.values())):
        raise RequestRefused("metrics are not finite numbers by name", param="metrics")
    if error is not None and not isinstance(error, str):
        raise RequestRefused("error is not a text", param="error")
    figures = {name: float(value) for name, value in metrics.items()}
    return TaskResult(None if reward is None else float(reward), figures, error)


def is_number(value: Any) -> bool:
    """Whether it is a finite number, or true or false, which are 1 and 0."""
    return isinstance(value, int | float) and abs(value) < 1e300 and math.isfinite(value)
