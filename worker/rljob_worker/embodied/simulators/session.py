"""One episode in a simulator: it goes on in another process where its own is lost by somebody else's fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rljob_worker.embodied.simulators.process import Call, ProcessLost, Slot
from rljob_worker.embodied.simulators.settings import Frame, SimulatorFailed
from rljob_worker.sandbox.guardian.framing import Message

if TYPE_CHECKING:
    from rljob_worker.embodied.simulators.pool import SimulatorPool

MOST_DEATHS = 2
"""Processes that may end while they are at calls of an episode; the last of them costs the episode."""


class SimulatorSession:
    """The episode's slot, and what has been done in it."""

    def __init__(self, pool: SimulatorPool) -> None:
        self._pool = pool
        self._slot: Slot | None = None
        self._history: list[tuple[Call, str]] = []
        """With the digests of their frames."""
        self._num_deaths = 0

    async def reset(self, seed: int, options: Mapping[str, Any]) -> Frame:
        """Begin, and let it settle. Raises SimulatorFailed, InvalidJob, EngineBroken."""
        message: Message = {"reset": {"seed": seed, "options": dict(options)}}
        return await self._ask(Call(message, self._pool.limits.start_seconds))

    async def step(self, actions: NDArray[np.float64], *, records: bool = False) -> Frame:
        """Take actions [steps, dimensions] until the episode is over. records: with the pictures after each of them.
        Raises as `reset`."""
        steps, dimensions = actions.shape
        message: Message = {"steps": steps, "dimensions": dimensions, "records": records}
        return await self._ask(Call(message, self._pool.limits.step_seconds * steps, actions))

    def close(self) -> None:
        """Others may have its place."""
        if self._slot is not None:
            self._pool.release(self._slot)
            self._slot = None

    async def _ask(self, call: Call) -> Frame:
        while True:
            try:
                slot = await self._ready_slot()
                frame: Frame = await self._pool.ask(slot, call)
            except ProcessLost as error:
                self._slot = None
                self._count(error)
            else:
                self._history.append((call, frame.digest))
                return frame

    def _count(self, error: ProcessLost) -> None:
        """Raises SimulatorFailed where the loss of a process costs the episode."""
        if not error.was_at_work:
            return
        self._num_deaths += 1
        if error.cause != "died" or self._num_deaths == MOST_DEATHS:
            raise SimulatorFailed(error.cause, str(error)) from error

    async def _ready_slot(self) -> Slot:
        """A slot whose environment is where this episode is."""
        if self._slot is not None and self._slot.process.lost is None:
            return self._slot
        self._slot = await self._pool.acquire()
        for number, (call, digest) in enumerate(self._history):
            frame: Frame = await self._pool.ask(self._slot, call)
            if frame.digest != digest:
                raise SimulatorFailed(
                    "died",
                    f"its process was replaced, and call {number + 1} of its actions did not come to the same again; "
                    "an episode has to depend on its seed, options and actions alone",
                )
        return self._slot
