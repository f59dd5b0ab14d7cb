"""Agents that live longer than a trajectory: each takes one after another from the endpoint, and says how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rljob_api.v1alpha1 import ConversationSpec
from rljob_worker.conversations.agents.branch_player import BranchPlayer, unless_failed
from rljob_worker.conversations.agents.kept_agents import KeptAgents
from rljob_worker.conversations.agents.policy_endpoint import ServedPolicy, described, endpoint_of
from rljob_worker.conversations.agents.programs import ProgramEnd, program_arguments, program_calls
from rljob_worker.conversations.branches import Branches
from rljob_worker.conversations.task import Task
from rljob_worker.endpoint.keys import Registration
from rljob_worker.endpoint.server import TASK
from rljob_worker.endpoint.task_offers import TaskOffer, TaskOffers, TaskResult
from rljob_worker.sandbox.calls.calls import Calls

LONGEST_LIFE_SECONDS = 1e7
"""How long an agent that a worker starts may live."""
MOST_PRINTED_BYTES = 1 << 50
"""An agent may print what it likes: only the end of it is kept."""


class AgentPool:
    """One worker's. For one event loop."""

    def __init__(
        self,
        conversation: ConversationSpec,
        policy: ServedPolicy,
        token: str,
        *,
        place: int = 0,
        pythonpath: Sequence[str] = (),
    ) -> None:
        """token: what agents show. place: of the worker among those of its host."""
        assert conversation.agent_pool is not None
        self._conversation, self._pool, self._token = conversation, conversation.agent_pool, token
        self._offers = TaskOffers(token)
        self.endpoint = endpoint_of(conversation, policy, place, self._offers)
        self._pythonpath = pythonpath
        self._calls: Calls | None = None
        self._kept: KeptAgents | None = None

    async def open(self) -> None:
        """Start the server, and the agents that are started here. Raises InvalidJob."""
        await self.endpoint.start()
        if not self._pool.command:
            return
        self._calls = program_calls(
            self._conversation,
            self._pool,
            self.endpoint.port,
            self._pythonpath,
            seconds=LONGEST_LIFE_SECONDS,
            output=1 << 20,
        )
        await self._calls.check()
        root = self.endpoint.base_url.removesuffix("/v1")
        variables = {"RLJOB_ENDPOINT": root + TASK.removesuffix("/task"), "RLJOB_AGENT_TOKEN": self._token}
        arguments = program_arguments(self._pool, variables, places={}, task={}, output=MOST_PRINTED_BYTES)
        self._kept = KeptAgents(self._calls, arguments, self._pool.replicas)

    async def close(self) -> None:
        """End the agents that were started here, and the server."""
        if self._kept is not None:
            await self._kept.close()
        if self._calls is not None:
            self._calls.close()
        await self.endpoint.close()

    async def play(self, task: Task, branches: Branches, session: str) -> ProgramEnd:
        """Offer a trajectory, and wait for its end. Raises what ends a trajectory, as `BranchPlayer.failure` has it,
        and InvalidJob for agents that cannot be started."""
        player = BranchPlayer(branches)
        async with self.endpoint.keys.registered(player) as (key, registration):
            registration.result = asyncio.get_running_loop().create_future()
            playing = asyncio.ensure_future(self._played(TaskOffer(key, described(task)), registration))
            failures = [player.failure, *([] if self._kept is None else [self._kept.failure])]
            try:
                return await unless_failed(playing, *failures)
            finally:
                playing.cancel()
                player.failure.cancel()

    async def _played(self, offer: TaskOffer, registration: Registration) -> ProgramEnd:
        assert registration.result is not None
        with self._offers.offered(offer):
            try:
                async with asyncio.timeout(self._pool.claim_seconds):
                    await offer.taken.wait()
            except TimeoutError:
                return ProgramEnd("agent_absent", self._absent())
            try:
                async with asyncio.timeout(self._pool.timeout_seconds):
                    result: TaskResult = await registration.result
            except TimeoutError:
                message = f"the agent that took it did not say its end within {self._pool.timeout_seconds:g} s"
                return ProgramEnd("agent_timedout", message + _refusal(registration), num_calls=registration.num_calls)
        if result.error is not None:
            return ProgramEnd("agent_error", result.error + _refusal(registration), num_calls=registration.num_calls)
        return ProgramEnd(reward=result.reward, metrics=result.metrics, num_calls=registration.num_calls)

    def _absent(self) -> str:
        limit = f"{self._pool.claim_seconds:g} s (rollout.conversation.agentPool.claimSeconds)"
        said = "" if self._kept is None or not self._kept.said else f"; {self._kept.said}"
        return f"no agent took it within {limit}{said}"


def _refusal(registration: Registration) -> str:
    refusal = registration.last_refusal
    return "" if refusal is None else f"; its last call was refused: {refusal}"
