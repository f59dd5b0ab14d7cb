"""A conversation with an environment: it observes, the policy says something, until the environment is done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rljob_worker.conversations.messages import Message
from rljob_worker.conversations.picture_parts import is_content
from rljob_worker.conversations.targets.adapted_environment import episode_target

if TYPE_CHECKING:
    from rljob_worker.conversations.policy import Policy
    from rljob_worker.conversations.task import Task
    from rljob_worker.conversations.world import World


async def environment(task: Task, policy: Policy, world: World) -> None:
    """Play it. The first observation follows the prompt of the data; the environment reads what the policy says,
    without its thoughts, and gives the reward of each turn."""
    if world.environment is None:
        world.fail("environment", "the job has no environment: name one under rollout.conversation.environments")
    result = await _asked(world, "reset", {"seed": task.seed, "columns": dict(task.columns)})
    new = joined(list(task.messages), observed(result["observation"]))
    is_done = bool(result["done"])
    try:
        while not is_done:
            said = await policy.chat(new)
            if said.finish_reason == "Length":
                break
            result = await _asked(world, "step", {"text": said.content})
            world.reward(result["reward"], turn=world.turns - 1)
            for name, value in result["metrics"].items():
                world.metric(name, value)
            is_done, new = result["done"], observed(result["observation"])
            if policy.is_over:
                break
    finally:
        world.metric("environment_done", is_done)


def observed(observation: str | list[Any]) -> list[Message]:
    """Messages of an observation: a text, and parts with pictures, are the user's."""
    if isinstance(observation, str) or is_content(observation):
        return [{"role": "user", "content": observation}]
    return list(observation)


def joined(prompt: list[Message], observation: list[Message]) -> list[Message]:
    """The prompt and the first observation; two texts of the user become one, as many templates have users and
    assistants by turns."""
    if prompt and observation and prompt[-1]["role"] == observation[0]["role"] == "user":
        first, second = prompt[-1]["content"], observation[0]["content"]
        both = _after(first, second) if first and second else first or second
        return [*prompt[:-1], prompt[-1] | {"content": both}, *observation[1:]]
    return [*prompt, *observation]


def _after(first: str | list[Any], second: str | list[Any]) -> str | list[Any]:
    """Contents with an empty line between."""
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    parts = [[{"type": "text", "text": item}] if isinstance(item, str) else item for item in (first, second)]
    return [*parts[0], {"type": "text", "text": "\n\n"}, *parts[1]]


async def _asked(world: World, method: str, arguments: dict[str, Any]) -> dict[str, Any]:
    assert world.environment is not None
    answer = await world.call(episode_target(world.environment), arguments, method)
    if answer.error is not None:
        world.fail(f"environment_{answer.error.cause}", f"{world.environment}.{method}: {answer.error.message}")
    result: dict[str, Any] = answer.value
    return result
