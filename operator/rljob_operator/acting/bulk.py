"""Many requests at once, but not all at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

MAX_IN_FLIGHT = 50

Item = TypeVar("Item")


async def for_each(
    items: Iterable[Item], act: Callable[[Item], Awaitable[None]], max_in_flight: int = MAX_IN_FLIGHT
) -> None:
    """`act` on every item, so many at a time.

    After the first error no further one is begun; those under way end, and then it is raised, as it is: in a group of
    exceptions nobody would know it.
    """
    waiting, errors = iter(items), list[Exception]()

    async def work() -> None:
        for item in waiting:
            if errors:
                return
            try:
                await act(item)
            except Exception as error:
                errors.append(error)

    async with asyncio.TaskGroup() as group:
        for _ in range(max_in_flight):
            group.create_task(work())
    if errors:
        raise errors[0]
