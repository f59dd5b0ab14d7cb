"""One turn: the prompt as the data has it, and what the policy says to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rljob_worker.conversations.policy import Policy
    from rljob_worker.conversations.task import Task
    from rljob_worker.conversations.world import World


async def single(task: Task, policy: Policy, world: World) -> None:
    """Continue the prompt once, token for token as a job without a conversation does."""
    await policy.complete(None)
