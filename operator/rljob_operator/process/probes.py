"""Liveness and readiness of the operator: a decision, and the loop that gathers what it needs."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from rljob_operator.process.settings import ProbeSettings

CHECK_SECONDS = 5.0
TICK_SECONDS = 1.0
_NUM_TICKS = 30
_MAX_DEAF_RESYNCS = 2


@dataclass(frozen=True)
class Vitals:
    """What is known of the operator's health."""

    watch_silence_seconds: float = 0.0
    """Since the quietest watch last said anything."""
    api_error: str | None = None
    """Why a read of the API failed, if it did."""
    queue_oldest_seconds: float = 0.0
    loop_lag_seconds: float = 0.0
    num_deaf_resyncs: int = 0
    """Resyncs in a row that found changes of jobs which no event had reported."""


def fault_of(vitals: Vitals, limits: ProbeSettings) -> str | None:
    """Why the operator should be restarted, or None.

    Silence alone is none while the API can be read: then a watch is reopened soon.  An API server that cannot be
    reached is none while a watch speaks.
    """
    if vitals.watch_silence_seconds > limits.watch_silence_seconds and vitals.api_error is not None:
        return f"no watch has spoken for {vitals.watch_silence_seconds:.0f} s, and a read fails: {vitals.api_error}"
    if vitals.num_deaf_resyncs >= _MAX_DEAF_RESYNCS:
        return f"{vitals.num_deaf_resyncs} resyncs in a row found changes of jobs that no event reported"
    if vitals.queue_oldest_seconds > limits.queue_oldest_seconds:
        return f"a job has waited for {vitals.queue_oldest_seconds:.0f} s"
    if vitals.loop_lag_seconds > limits.loop_lag_seconds:
        return f"the event loop was {vitals.loop_lag_seconds:.1f} s late"
    return None


class LoopLag:
    """How late the event loop is, at worst, over the last half minute."""

    def __init__(self) -> None:
        self._lags: deque[float] = deque(maxlen=_NUM_TICKS)

    @property
    def seconds(self) -> float:
        return max(self._lags, default=0.0)

    async def run(self) -> None:
        """Measure until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + TICK_SECONDS
            await asyncio.sleep(TICK_SECONDS)
            self._lags.append(loop.time() - due)


class Health:
    """Keeps an answer ready, so that a probe never waits for the API server."""

    def __init__(
        self,
        vitals: Callable[[], Vitals],
        read_api: Callable[[], Awaitable[str | None]],
        limits: ProbeSettings,
    ) -> None:
        """`vitals` says all but `api_error`; `read_api` reads something, and says why it could not."""
        self._vitals = vitals
        self._read_api = read_api
        self._limits = limits
        self.fault: str | None = None

    async def check(self) -> None:
        """Gather, decide."""
        vitals = self._vitals()
        if vitals.watch_silence_seconds > self._limits.watch_silence_seconds:
            vitals = Vitals(**{**vars(vitals), "api_error": await self._read_api()})
        self.fault = fault_of(vitals, self._limits)

    async def run(self) -> None:
        """Check every few seconds until cancelled."""
        while True:
            await self.check()
            await asyncio.sleep(CHECK_SECONDS)
