"""Waiting for something, unless one is asked to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def is_done_before(stop: asyncio.Event, part: Coroutine[Any, Any, None]) -> bool:
    """Run `part`; whether it ended before `stop` was set, which cancels it.  What it raises is raised."""
    working, stopping = asyncio.create_task(part), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            await working
        return not stop.is_set()
    finally:
        working.cancel()
        stopping.cancel()
