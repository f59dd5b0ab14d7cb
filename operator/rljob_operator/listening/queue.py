"""`WorkQueue`: which job is looked at next, once, by one worker at a time."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Literal, Protocol

from rljob_operator.cluster.errors import ApiError
from rljob_operator.reporting.logs import log_context
from rljob_operator.vocabulary.backoff import Backoff
from rljob_operator.vocabulary.key import Key

logger = logging.getLogger(__name__)

DEFAULT_BACKOFF = Backoff(0.5, 120.0)

_MOST_PATIENT = 2
"""Looks at once that can wait: their requests, which are limited per second, are others' that are not sent."""

Result = Literal["Ok", "Error", "Crash"]
"""How a reconcile went: `Error` is the cluster's (a ClusterError), `Crash` our own; both are tried again."""


class QueueObserver(Protocol):
    """Notified how each reconcile went."""

    def reconciled(self, result: Result, seconds: float) -> None: ...


class WorkQueue:
    """Calls `reconcile` for every key that was added.

    A key added several times while it waits is looked at once; one added while it is looked at, once more
    afterwards; never by two workers at a time.  A reconcile that raises is tried again after a growing pause,
    whatever it raised.  What it returns is in how many seconds to look again, or None.
    """

    def __init__(
        self,
        reconcile: Callable[[Key], Awaitable[float | None]],
        num_workers: int = 10,
        *,
        backoff: Backoff = DEFAULT_BACKOFF,
        observer: QueueObserver | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._reconcile = reconcile
        self._num_workers = num_workers
        self._backoff = backoff
        self._observer = observer
        self._chance = chance
        self._waiting: dict[Key, float] = {}  # in the order of arrival; value: when it arrived
        self._patient: dict[Key, float] = {}  # the same, of those that are looked at when no other waits
        self._active: dict[Key, float] = {}
        self._active_patient: set[Key] = set()  # those of them that waited patiently
        self._again: set[Key] = set()  # added while active
        self._hinted: dict[Key, float] = {}  # hinted at while active; value: after how long to look
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._num_failures: dict[Key, int] = {}
        self._arrival = asyncio.Event()
        self._calm = asyncio.Event()
        self._calm.set()
        self._stopping = False

    def add(self, key: Key, is_patient: bool = False) -> None:
        """Look at `key` as soon as a worker is free, or, `is_patient`, when in addition nothing else waits."""
        self._cancel_timer(key)
        if key in self._active:
            self._again.add(key)
            return
        if is_patient and key not in self._waiting:
            self._patient.setdefault(key, _now())
        else:
            self._waiting.setdefault(key, self._patient.pop(key, _now()))
            self._calm.clear()
        self._arrival.set()

    def add_after(self, key: Key, seconds: float) -> None:
        """Look at `key` in `seconds`, or earlier when it is added, or was to be looked at, earlier."""
        due = _now() + seconds
        timer = self._timers.get(key)
        if timer is not None and timer.when() <= due:
            return
        self._cancel_timer(key)
        self._timers[key] = asyncio.get_running_loop().call_at(due, self.add, key)

    def hint(self, key: Key, seconds: float = 0.0) -> None:
        """Look at `key` in `seconds`, for what its pods do or say; while its last look has failed, that is not a reason
        to look before the pause is over: pods may change and answer as often as they like."""
        if key in self._active:
            self._hinted[key] = min(seconds, self._hinted.get(key, seconds))
        elif key not in self._num_failures:
            self.add_after(key, seconds)

    async def until_calm(self) -> None:
        """Return once nothing waits, or is looked at, that is not patient."""
        await self._calm.wait()

    @property
    def depth(self) -> int:
        """Keys that wait for a worker."""
        return len(self._waiting) + len(self._patient)

    @property
    def oldest_seconds(self) -> float:
        """Age of the key that has waited, or has been looked at, for the longest time."""
        oldest = min((*self._waiting.values(), *self._patient.values(), *self._active.values()), default=None)
        return 0.0 if oldest is None else _now() - oldest

    async def run(self) -> None:
        """Work until `stop`, or until cancelled."""
        async with asyncio.TaskGroup() as workers:
            for _ in range(self._num_workers):
                workers.create_task(self._work())

    def stop(self) -> None:
        """Start nothing more; `run` returns once what is under way is finished."""
        self._stopping = True
        for key in tuple(self._timers):
            self._cancel_timer(key)
        self._arrival.set()

    async def _work(self) -> None:
        while not self._stopping:
            key = self._take_next()
            if key is None:
                self._arrival.clear()
                await self._arrival.wait()
                continue
            self._cancel_timer(key)
            try:
                await self._look_at(key)
            finally:
                self._finish(key)

    def _take_next(self) -> Key | None:
        """What is to be looked at now; None: nothing, or only what other workers will come to."""
        if self._waiting:
            key = next(iter(self._waiting))
            self._active[key] = self._waiting.pop(key)
            return key
        if not self._patient or len(self._active_patient) >= _MOST_PATIENT:
            return None
        key = next(iter(self._patient))
        self._active[key] = self._patient.pop(key)
        self._active_patient.add(key)
        return key

    async def _look_at(self, key: Key) -> None:
        began = _now()
        with log_context(key):
            result, seconds = await self._guarded(key)
        if self._observer is not None:
            self._observer.reconciled(result, _now() - began)
        if seconds is not None and not self._stopping:
            self.add_after(key, seconds)

    async def _guarded(self, key: Key) -> tuple[Result, float | None]:
        try:
            seconds = await self._reconcile(key)
        except ApiError as error:
            pause = self._next_pause(key)
            logger.warning("%s; again in %.1f s", error, pause)
            return "Error", pause
        except Exception:  # a bug in one job's reconcile must not end the operator, which runs all the others
            pause = self._next_pause(key)
            logger.exception("the reconcile failed; again in %.1f s", pause)
            return "Crash", pause
        self._num_failures.pop(key, None)
        return "Ok", seconds

    def _next_pause(self, key: Key) -> float:
        self._num_failures[key] = self._num_failures.get(key, 0) + 1
        return self._backoff.seconds(self._num_failures[key], self._chance())

    def _finish(self, key: Key) -> None:
        del self._active[key]
        self._active_patient.discard(key)
        if key in self._hinted:
            self.hint(key, self._hinted.pop(key))
        if key in self._again:
            self._again.discard(key)
            self.add(key)
        if not self._waiting and len(self._active) == len(self._active_patient):
            self._calm.set()

    def _cancel_timer(self, key: Key) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()


def _now() -> float:
    return asyncio.get_running_loop().time()
