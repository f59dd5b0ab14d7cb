"""Pools of simulators in tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from rljob_worker.embodied.simulators.pool import SimulatorPool
from rljob_worker.embodied.simulators.settings import PoolLimits, SimulatorSettings
from rljob_worker.sandbox.guardian.environment import child_environment

Value = TypeVar("Value")
WORLDS = "rljob_worker.embodied.simulators.tests.worlds"


def settings(run: str = "plane", **changes: Any) -> SimulatorSettings:
    options = changes.pop("options", {})
    return SimulatorSettings(f"{WORLDS}:{run}", options, **changes)


def with_pool(
    work: Callable[[SimulatorPool], Awaitable[Value]],
    how: SimulatorSettings | None = None,
    limits: PoolLimits | None = None,
) -> Value:
    """What `work` comes to with a pool that has started."""

    async def played() -> Value:
        pool = SimulatorPool(how or settings(), limits or PoolLimits(processes=1), child_environment([]))
        try:
            await pool.start()
            return await work(pool)
        finally:
            pool.close()

    return asyncio.run(played())
