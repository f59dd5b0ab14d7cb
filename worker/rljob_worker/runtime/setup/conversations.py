"""What plays the conversations of a rank's policies."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rljob_api.catalogue.rollout_engines import ROLLOUT_ENGINES
from rljob_api.pipeline.meshes import Mesh
from rljob_api.planning.plan import GroupPlan, Plan, StagePlan
from rljob_api.v1alpha1 import ConversationSpec, RLJobSpec
from rljob_api.v1alpha1.conversation import SHIPPED_CONVERSATIONS
from rljob_api.vocabulary import keys
from rljob_api.vocabulary.agents_token import agents_token
from rljob_worker.conversations.agents.agent_pool import AgentPool
from rljob_worker.conversations.agents.policy_endpoint import ServedPolicy
from rljob_worker.conversations.agents.programs import Programs
from rljob_worker.conversations.messages import Renderer
from rljob_worker.conversations.playing.loop import Conversations
from rljob_worker.conversations.playing.one_trajectory import Run
from rljob_worker.conversations.playing.policy_engines import PlayingEngine, PolicyEngines
from rljob_worker.conversations.policy import Agent, Bounds, Policy
from rljob_worker.conversations.rendering.chat_renderer import ChatRenderer
from rljob_worker.conversations.run_functions.loading import load_run_function
from rljob_worker.conversations.targets.callers import Callers
from rljob_worker.conversations.task import Task
from rljob_worker.conversations.world import SharedWorld, World
from rljob_worker.data.source import DataAccess
from rljob_worker.engines.parallel.mesh import ProcessMesh
from rljob_worker.engines.rollout.protocol import RolloutEngine
from rljob_worker.engines.rollout.requests import MOST_TOP_LOG_PROBS
from rljob_worker.runtime.setup.journals import journal_folder
from rljob_worker.runtime.setup.pictures import picture_processor
from rljob_worker.runtime.setup.tokenizers import require_alike
from rljob_worker.stages.played.conversation_rollout import ConversationRollout
from rljob_worker.storage.paths import StoragePath
from rljob_worker.users_code.search_path import code_folders
from rljob_worker.vision.processing import PictureProcessor

MOST_PROCESSES = 8
"""Processes for tools and environments of a worker, where the job does not say."""
_OWNER = "rollout.conversation.run"


def build_conversations(
    plan: Plan,
    group: GroupPlan,
    rank: int,
    stages: Sequence[StagePlan],
    engines: Mapping[str, RolloutEngine],
    tokenizers: Mapping[str, Any],
    meshes: Mapping[Mesh, ProcessMesh],
    access: DataAccess,
    home: StoragePath | None = None,
) -> dict[str, ConversationRollout]:
    """By policy; none in a job without conversations. stages: that generate. home: what holds the run's
    checkpoints, and journals beside them; None: nothing is recorded. access: names the attempt.

    Raises InvalidJob for a function that plays no conversation, tools that cannot be called, and a template without
    them.
    """
    conversation = plan.spec.rollout.conversation
    if conversation is None:
        return {}
    run = load_run(conversation)
    result = {}
    for stage in stages:
        policy = stage.models[0]  # of a team's policies the first, whose rows have those of the others beside them
        spec, leads = plan.spec_of(policy), meshes[stage.mesh].is_leader
        arguments = plan.spec.source_of(policy).chat_template
        processor = picture_processor(spec, policy) if leads else None
        renderer = renderer_of(tokenizers[policy], arguments, processor) if leads else None
        caller = caller_of(conversation, group) if leads else None
        conversations = Conversations(
            playing_engine(spec, stage.models, engines),
            run,
            renderer,
            bounds_of(spec, tokenizers[policy] if leads else None),
            concurrency=conversation.concurrency,
            caller=caller,
            shared=SharedWorld(conversation.options),
            agents=agents_of(spec, tokenizers) if leads else (),
            run_name=conversation.run_function,
            most_blocked_seconds=spec.data_buffer.deadline_seconds,
            most_idle_seconds=most_idle_seconds(spec, conversation),
            picture_token=None if processor is None else processor.tokens.pad,
        )
        if caller is not None:
            conversations.prepare(caller.check())
            conversations.shared = conversations.prepare(caller.shared_world(conversation))
            if shows_tools(conversation) and isinstance(renderer, ChatRenderer):
                renderer.require_tools()
        if spec.agents:
            conversations.shared = replace(conversations.shared, team=conversation)
        programs = programs_of(spec, policy, rank % group.workers_per_host) if leads else None
        if programs is not None:
            conversations.shared = replace(conversations.shared, programs=programs)
            conversations.prepare(programs.open())
        folder = None if home is None or not leads else journal_folder(plan.spec, policy, rank, access, home)
        result[policy] = ConversationRollout(spec, conversations, folder)
    return result


def playing_engine(spec: RLJobSpec, models: Sequence[str], engines: Mapping[str, RolloutEngine]) -> PlayingEngine:
    """What generates the turns of all agents."""
    if len(models) == 1:
        return engines[models[0]]
    number = {model: at for at, model in enumerate(models)}
    of_agents = np.array([number[agent.policy] for agent in spec.agents], np.int64)
    return PolicyEngines([engines[model] for model in models], of_agents, spec.rows_per_agent)


def agents_of(spec: RLJobSpec, tokenizers: Mapping[str, Any]) -> tuple[Agent, ...]:
    """The agents of a job, each with the chat template of its policy; none in a job without. Raises InvalidJob for
    policies whose tokens or chat templates do not go together."""
    renderers: dict[str, Renderer | None] = {}
    for agent in spec.agents:
        if agent.policy not in renderers:
            require_alike(spec.agents[0].policy, agent.policy, tokenizers)
            template = spec.source_of(agent.policy).chat_template
            renderers[agent.policy] = renderer_of(tokenizers[agent.policy], template)
    return tuple(Agent(agent.name, at, renderers[agent.policy]) for at, agent in enumerate(spec.agents))


def load_run(conversation: ConversationSpec) -> Run:
    """The function that plays. Raises InvalidJob unless it is `async` and takes task, policy and world."""
    function = load_run_function(_OWNER, conversation.run_function)

    async def checked(task: Task, policy: Policy, world: World) -> None:
        await function(task, policy, world)

    return checked


def most_idle_seconds(spec: RLJobSpec, conversation: ConversationSpec) -> float:
    """How long a run function of the user's may wait for something else than turns and calls. Those that come with
    rljob wait for programs, too, which have limits of their own."""
    is_shipped = conversation.run_function.startswith(SHIPPED_CONVERSATIONS)
    return math.inf if is_shipped else spec.data_buffer.deadline_seconds


def shows_tools(conversation: ConversationSpec) -> bool:
    """Whether the model is shown the job's tools, whatever the function that plays does."""
    return (
        bool(conversation.tools or conversation.mcp_servers)
        and conversation.run_function == SHIPPED_CONVERSATIONS + "tools"
    )


def renderer_of(
    tokenizer: Any, template_arguments: Mapping[str, Any], pictures: PictureProcessor | None = None
) -> Renderer | None:
    """None for a model without a chat template, with which only `policy.complete` can be used. pictures: of a model
    that sees."""
    if tokenizer.chat_template is None:
        return None
    return ChatRenderer(tokenizer, template_arguments=template_arguments, pictures=pictures)


def caller_of(conversation: ConversationSpec, group: GroupPlan) -> Callers | None:
    """None in a job without tools, environments and servers."""
    if not conversation.tools and not conversation.environments and not conversation.mcp_servers:
        return None
    share = max(1, (os.cpu_count() or 1) // group.workers_per_host)
    return Callers(conversation, conversation.processes or min(MOST_PROCESSES, share), code_folders(os.environ))


def programs_of(spec: RLJobSpec, policy: str, place: int) -> Programs | AgentPool | None:
    """Agents that are programs, whose calls are turns of this policy; None in a job without. place: of the worker among
    those of its host."""
    rollout, conversation = spec.rollout, spec.rollout.conversation
    assert conversation is not None
    gives_top = ROLLOUT_ENGINES[rollout.engine].gives_top_log_probs
    served = ServedPolicy(policy, rollout.temperature, rollout.stop, rollout.stop_token_ids, gives_top)
    folders = code_folders(os.environ)
    if conversation.program is not None:
        return Programs(conversation, served, place=place, pythonpath=folders)
    if conversation.agent_pool is None:
        return None
    with open(os.environ[keys.ENV_TOKEN_FILE], encoding="utf-8") as file:
        token = agents_token(file.read().strip())
    return AgentPool(conversation, served, token, place=place, pythonpath=folders)


def bounds_of(spec: RLJobSpec, tokenizer: Any | None) -> Bounds:
    """How long a trajectory of the job may get. tokenizer: of its policy; None: tokens are not looked at, as on a rank
    that leads no copy."""
    conversation = spec.rollout.conversation
    assert conversation is not None
    return Bounds(
        turns=conversation.max_turns,
        rows=conversation.max_rows,
        response_tokens=conversation.max_tokens or spec.rollout.max_response_tokens,
        row_tokens=spec.longest_row,
        num_tokens=None if tokenizer is None else 1 + max(tokenizer.get_vocab().values()),
        sees=spec.sees,
        most_top_log_probs=MOST_TOP_LOG_PROBS if ROLLOUT_ENGINES[spec.rollout.engine].gives_top_log_probs else 0,
    )
