"""Can the agents of a job's conversations be played: are they named, shown something, and is there an end?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rljob_api.checks.pictures import shown_at
from rljob_api.checks.subject import Subject, problem
from rljob_api.v1alpha1 import AgentSpec, ConversationSpec
from rljob_api.v1alpha1.conversation import SHIPPED_CONVERSATIONS, TASK
from rljob_api.vocabulary.problem import Problem, suggestion

_PATH = "spec.rollout.conversation"
TEAM = SHIPPED_CONVERSATIONS + "team"


def check_team(subject: Subject) -> Iterator[Problem]:
    """Names, policies, who hears whom, the order of turns and its end, and what of the job cannot go with a team."""
    conversation = subject.spec.rollout.conversation
    if conversation is None:
        return
    if not conversation.agents:
        yield from _without_agents(conversation)
        return
    if problems := [*_names(conversation), *_policies(subject, conversation)]:
        yield from problems
        return
    if conversation.run_function == TEAM:
        yield from _end(conversation)
        yield from _turns(conversation)
    yield from _unbuilt(subject)


def _without_agents(conversation: ConversationSpec) -> Iterator[Problem]:
    fields = {
        "order": list(conversation.order),
        "rounds": conversation.rounds,
        "reward": conversation.reward if conversation.reward != "Shared" else None,
    }
    for field, value in fields.items():
        if value:
            message = "this is of a team, and there are no agents"
            yield problem(f"{_PATH}.{field}", value, message, "List agents, or leave it out.")
    if conversation.run == TEAM:
        yield problem(f"{_PATH}.run", conversation.run, "there are no agents to play", "List them in agents.")


def _names(conversation: ConversationSpec) -> Iterator[Problem]:
    names = [agent.name for agent in conversation.agents]
    for i, agent in enumerate(conversation.agents):
        path = f"{_PATH}.agents[{i}]"
        if agent.name in names[:i]:
            message = f"agents[{names.index(agent.name)}] has this name too"
            yield problem(f"{path}.name", agent.name, message, "Give one of them another name.")
        elif agent.name == TASK:
            yield problem(f"{path}.name", TASK, "this is what the prompt is called in hears", "Write another name.")
        for j, name in enumerate(agent.hears or ()):
            if name == agent.name:
                message = "an agent has its own turns in its rows anyway"
                yield problem(f"{path}.hears[{j}]", name, message, "Leave it out.")
            elif name not in (TASK, *names):
                message = "there is no such agent"
                yield problem(f"{path}.hears[{j}]", name, message, suggestion(name, [TASK, *names]))
    for i, name in enumerate(conversation.order):
        if name not in names:
            yield problem(f"{_PATH}.order[{i}]", name, "there is no such agent", suggestion(name, names))


def _policies(subject: Subject, conversation: ConversationSpec) -> Iterator[Problem]:
    policies = subject.spec.policies
    for i, agent in enumerate(conversation.agents):
        if policies and agent.policy not in policies and subject.spec.dag is not None:
            message = "no stage with run: UpdatePolicy trains the model, so it is not a policy"
            yield problem(f"{_PATH}.agents[{i}].policy", agent.policy, message, suggestion(agent.policy, policies))
        elif agent.policy not in subject.model_names:
            message = "there is no such model"
            fix = suggestion(agent.policy, [model.name for model in subject.spec.models])
            yield problem(f"{_PATH}.agents[{i}].policy", agent.policy, message, fix)
        if agent.critic is not None and subject.spec.algorithm.critic is None:
            message = f"{subject.spec.algorithm.name} has no critic"
            yield problem(f"{_PATH}.agents[{i}].critic", agent.critic, message, "Leave it out, or use PPO or MARFT.")
        elif agent.critic is not None and agent.critic not in subject.model_names:
            message = "there is no such model"
            fix = suggestion(agent.critic, subject.model_names)
            yield problem(f"{_PATH}.agents[{i}].critic", agent.critic, message, fix)
    played = {agent.policy for agent in conversation.agents}
    for policy in policies:
        if policy not in played:
            message = f"policy {policy} plays no agent, so it has no rows to learn from"
            fix = f"Write policy: {policy} in an agent, or leave its UpdatePolicy stage out."
            yield problem(f"{_PATH}.agents", [agent.name for agent in conversation.agents], message, fix)


def _end(conversation: ConversationSpec) -> Iterator[Problem]:
    turns = conversation.turns_of_round
    speaks = [agent.stop_word for agent in conversation.agents if agent.name in turns]
    if conversation.rounds is None:
        if not any(speaks):
            message = "nothing ends the order: there are no rounds, and no agent of it has a stopWord"
            yield problem(f"{_PATH}.order", list(turns), message, "Write rounds, or the stopWord of an agent.")
        return
    if (number := conversation.rounds * len(turns)) > conversation.max_turns:
        message = f"{conversation.rounds} rounds of {len(turns)} turns are {number}"
        fix = f"Write maxTurns: {number} or more, or fewer rounds."
        yield problem(f"{_PATH}.maxTurns", conversation.max_turns, message, fix)


def _turns(conversation: ConversationSpec) -> Iterator[Problem]:
    """Every agent takes turns, and is shown something new before each."""
    turns = conversation.turns_of_round
    agents = {agent.name: agent for agent in conversation.agents}
    for i, agent in enumerate(conversation.agents):
        if agent.name not in turns:
            message = f"agent {agent.name} never takes a turn"
            yield problem(f"{_PATH}.order", list(turns), message, f"Add {agent.name}, or leave agents[{i}] out.")
    rounds = 2 if conversation.rounds is None else min(conversation.rounds, 2)
    sequence = [agents[name] for name in turns] * rounds
    for place, agent in enumerate(sequence):
        if not _is_shown_something(agent, sequence[:place]):
            message = f"agent {agent.name} is shown nothing new before turn {place + 1}, so it would say nothing new"
            yield problem(f"{_PATH}.order", list(turns), message, f"Let {agent.name} hear task, or who acts before it.")
            return


def _is_shown_something(agent: AgentSpec, before: Sequence[AgentSpec]) -> bool:
    mine = [place for place, other in enumerate(before) if other.name == agent.name]
    since = before[mine[-1] + 1 :] if mine else before
    opens = not mine and (agent.hears_task or agent.system is not None)
    return opens or any(agent.hears_agent(other.name) for other in since)


def _unbuilt(subject: Subject) -> Iterator[Problem]:
    """Settings that mean something with a team which this version cannot do."""
    spec, message = subject.spec, "this is not built yet with agents"
    draws = any(stage.spec.run == "Sample" for stage in subject.resolution.stages.values())
    if draws and spec.rewards_agents:
        yield problem(f"{_PATH}.reward", "PerAgent", f"{message} and stage Sample", "Write Shared, or use Rollout.")
    conversation = spec.rollout.conversation
    if conversation is not None and conversation.program is not None:
        yield problem(f"{_PATH}.program", None, "a program plays alone, and there are agents", "Leave one of them out.")
    if conversation is not None and conversation.agent_pool is not None:
        alone = "an agent of the pool plays alone, and there are agents"
        yield problem(f"{_PATH}.agentPool", None, alone, "Leave one of them out.")
    if spec.sees:
        yield problem(*shown_at(spec), message, "Leave it out, or agents.")
    if spec.is_team_of_policies:
        yield from _generating_groups(subject)


def _generating_groups(subject: Subject) -> Iterator[Problem]:
    """All agents of a trajectory are played in one place."""
    stages = [stage for stage in subject.resolution.stages.values() if stage.generates]
    for stage in stages:
        missing = [name for name in subject.spec.agent_policies if name not in stage.models]
        if missing:
            message = f"stage {stage.name} plays all agents of a trajectory, and {missing[0]} plays one"
            path = subject.stage_path(stage.name, "models")
            names = ", ".join(subject.spec.agent_policies)
            fix = f"Write models: [{names}] in one stage; updates may be each in a worker group of its own."
            yield problem(path, list(stage.models), message, fix)
