"""A conversation of several agents, who take turns in the order of the job and hear what others say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING

from rljob_worker.conversations.messages import Message

if TYPE_CHECKING:
    from rljob_api.v1alpha1 import AgentSpec, ConversationSpec
    from rljob_worker.conversations.policy import Policy
    from rljob_worker.conversations.task import Task
    from rljob_worker.conversations.world import World


async def team(task: Task, policy: Policy, world: World) -> None:
    """Play it: rounds of the order, until an agent says its `stopWord`, rounds are over, or turns are."""
    said: list[tuple[str, str]] = []
    heard = dict.fromkeys(world.agents, 0)
    for agent in turns_of(world.team):
        if not world.turns_left:
            break
        shown = said[heard[agent.name] :]
        messages = shown_messages(agent, task.messages if not heard_before(world, agent) else None, shown)
        message = await world.agents[agent.name].chat(messages)
        said.append((agent.name, message.content.strip()))
        heard[agent.name] = len(said)
        if agent.stop_word is not None and agent.stop_word in message.content:
            break
    world.metric("turns", len(said))


def heard_before(world: World, agent: AgentSpec) -> bool:
    """Whether an agent has taken a turn."""
    return bool(world.agents[agent.name].messages)


def turns_of(team: ConversationSpec) -> Iterator[AgentSpec]:
    """Who takes each turn; without end where nothing but a word ends it."""
    agents: Mapping[str, AgentSpec] = {agent.name: agent for agent in team.agents}
    for number in count():
        if number == team.rounds:
            return
        for name in team.turns_of_round:
            yield agents[name]


def shown_messages(agent: AgentSpec, task: Sequence[Message] | None, said: Sequence[tuple[str, str]]) -> list[Message]:
    """What an agent is shown before a turn: before its first the system message and the prompt, and whatever those that
    it hears said since its last, as one message of the user.

    task: the prompt; None after the first turn. said: names and words.
    """
    messages: list[Message] = []
    if task is not None:
        messages += [{"role": "system", "content": agent.system}] * (agent.system is not None)
        messages += task if agent.hears_task else ()
    text = "\n\n".join(f"{name}: {words}" for name, words in said if agent.hears_agent(name))
    if not text:
        return messages
    if messages and messages[-1]["role"] == "user":  # chat templates want turns of user and assistant by turns
        messages[-1] = messages[-1] | {"content": f"{messages[-1]['content']}\n\n{text}"}
    else:
        messages.append({"role": "user", "content": text})
    return messages
