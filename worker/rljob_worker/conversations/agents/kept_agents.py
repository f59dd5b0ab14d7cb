"""Agents that a worker starts beside it, and starts again by themselves where they end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from rljob_worker.conversations.agents.programs import PROGRAM, last_words
from rljob_worker.errors import InvalidJob
from rljob_worker.process.restart_pauses import LONG_LIFE_SECONDS, pause_seconds
from rljob_worker.sandbox.calls.calls import Calls

log = logging.getLogger("rljob.conversations")


class KeptAgents:
    """Those of one worker. For one event loop."""

    def __init__(self, calls: Calls, arguments: Mapping[str, Any], replicas: int) -> None:
        """calls: where they are started, with these arguments of the target PROGRAM."""
        self._calls, self._arguments = calls, arguments
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fails with InvalidJob for a command that cannot be started; never done otherwise."""
        self.said = ""
        """How the one that ended last did."""
        self._tasks = [asyncio.ensure_future(self._keep(number)) for number in range(replicas)]

    async def close(self) -> None:
        """End them."""
        self.failure.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _keep(self, number: int) -> None:
        clock, num_short_lives = asyncio.get_running_loop().time, 0
        while True:
            began = clock()
            words = await self._life(f"agent-{number}")
            if words is None:
                return
            num_short_lives = 1 if clock() - began >= LONG_LIFE_SECONDS else num_short_lives + 1
            pause = pause_seconds(num_short_lives)
            self.said = f"agent {number} ended: {words}"
            log.warning("%s; it starts again in %.0f s", self.said, pause)
            await asyncio.sleep(pause)

    async def _life(self, session: str) -> str | None:
        """How it ended; None where it could not begin."""
        try:
            answer = await self._calls.call(session, PROGRAM, None, self._arguments)
        finally:
            await self._calls.end(session)
        if answer.error is not None:
            return f"{answer.error.cause}: {answer.error.message}"
        if answer.value["why"] is not None:
            if not self.failure.done():
                self.failure.set_exception(InvalidJob(f"rollout.conversation.agentPool.command: {answer.value['why']}"))
            return None
        return last_words(answer.value)
