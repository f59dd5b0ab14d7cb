"""A conversation that an agent leads which is a program of its own: its calls are the policy's turns."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rljob_worker.conversations.policy import Policy
    from rljob_worker.conversations.task import Task
    from rljob_worker.conversations.world import World


async def program(task: Task, policy: Policy, world: World) -> None:
    """Start the job's program, or offer the trajectory to its agents, and wait for its end. A last line of a program's
    output that is a JSON object with `reward`, and perhaps `metrics`, is the environment's. One that fails costs the
    trajectory, unless it is over for want of turns or tokens, where few programs end well."""
    if world.programs is None:
        world.fail("program", "the job has no program: write program.command or agentPool in rollout.conversation")
    end = await world.programs.play(task, policy.branches(), world.session)
    world.metric("program_calls", end.num_calls)
    if end.cause is not None and not policy.is_over:
        world.fail(end.cause, end.message)
    if end.cause is None and not end.num_calls:
        world.fail("program_calls", "the program ended well without a call of the policy; does it use OPENAI_BASE_URL?")
    if end.reward is not None:
        world.reward(end.reward)
    for name, value in end.metrics.items():
        world.metric(name, value)
