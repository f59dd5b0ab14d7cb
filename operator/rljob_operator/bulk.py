"""Many requests at once, but not all at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from rljob_operator.cluster.errors import ClusterError

MAX_IN_FLIGHT = 50

Item = TypeVar("Item")


async def for_each(
    items: Iterable[Item], act: Callable[[Item], Awaitable[None]], max_in_flight: int = MAX_IN_FLIGHT
) -> None:
    """`act` on every item, so many at a time.

    After the first ClusterError no further one is begun; those under way end, and then it is raised.
    """
    waiting, errors = iter(items), list[ClusterError]()

    async def work() -> None:
        for item in waiting:
            if errors:
                return
            try:
                await act(item)
            except ClusterError as error:
                errors.append(error)

    async with asyncio.TaskGroup() as group:
        for _ in range(max_in_flight):
            group.create_task(work())
    if errors:
        raise errors[0]
