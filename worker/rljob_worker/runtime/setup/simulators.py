"""What plays the episodes of a rank's policies, and the data that their simulator lists."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from rljob_api.pipeline.meshes import Mesh
from rljob_api.planning.plan import GroupPlan, Plan, StagePlan
from rljob_api.v1alpha1 import DatasetSpec, RLJobSpec, SimulatorSpec
from rljob_worker.conversations.playing.loop import Conversations
from rljob_worker.conversations.policy import Bounds, Policy
from rljob_worker.conversations.task import Task
from rljob_worker.conversations.world import World
from rljob_worker.data.source import DataAccess
from rljob_worker.embodied.action_policy import TextRule, action_policy
from rljob_worker.embodied.episode import Episodes
from rljob_worker.embodied.observation import ActionPolicy
from rljob_worker.embodied.simulators.job_pool import pool_limits, simulator_environment, simulator_settings
from rljob_worker.embodied.simulators.pool import SimulatorPool
from rljob_worker.embodied.task_lists import TaskLists
from rljob_worker.embodied.video_encoders import VideoEncoder
from rljob_worker.engines.parallel.mesh import ProcessMesh
from rljob_worker.engines.rollout.protocol import RolloutEngine
from rljob_worker.errors import InvalidJob
from rljob_worker.runtime.setup.journals import journal_folder
from rljob_worker.stages.played.conversation_rollout import ConversationRollout
from rljob_worker.storage.paths import StoragePath
from rljob_worker.users_code.search_path import code_folders
from rljob_worker.vision.sizes import PixelBudget

FOLDER = "simulators"
"""The folder of lists of tasks, in the cache of a run."""


def build_episodes(
    plan: Plan,
    group: GroupPlan,
    rank: int,
    stages: Sequence[StagePlan],
    engines: Mapping[str, RolloutEngine],
    meshes: Mapping[Mesh, ProcessMesh],
    access: DataAccess,
    home: StoragePath | None = None,
) -> dict[str, ConversationRollout]:
    """By policy; none in a job without a simulator. Arguments are those of `build_conversations`.

    Raises InvalidJob for a simulator that cannot be made, and a policy that cannot act in it.
    """
    simulator = plan.spec.rollout.simulator
    if simulator is None:
        return {}
    result = {}
    for stage in stages:
        (policy,) = stage.models
        spec, leads = plan.spec_of(policy), meshes[stage.mesh].is_leader
        conversations = _episodes(spec, policy, simulator, group, rank, engines[policy], leads)
        folder = None if home is None or not leads else journal_folder(plan.spec, policy, rank, access, home)
        result[policy] = ConversationRollout(spec, conversations, folder)
    return result


def _episodes(
    spec: RLJobSpec,
    policy: str,
    simulator: SimulatorSpec,
    group: GroupPlan,
    rank: int,
    engine: RolloutEngine,
    leads: bool,
) -> Conversations:
    bounds, concurrency = episode_bounds(spec, simulator), simulator.num_environments
    if not leads:
        return Conversations(engine, _no_episode, None, bounds, concurrency=concurrency)
    image = spec.data.image
    asked = TextRule(PixelBudget(image.min_pixels, image.max_pixels), spec.data.apply_chat_template)
    acting = action_policy(spec.source_of(policy).path, simulator.statistics, simulator.action_chunk, asked)
    require_room(acting, spec)
    variables = _variables(simulator, rank % group.workers_per_host)
    pool = SimulatorPool(simulator_settings(simulator), pool_limits(simulator), variables)
    encoder = None if simulator.video is None else VideoEncoder.load(simulator.video, os.environ)
    episodes = Episodes(pool, acting, simulator, encoder)
    conversations = Conversations(engine, episodes.play, None, bounds, concurrency=concurrency, closing=episodes.close)
    conversations.prepare(episodes.start())
    return conversations


async def _no_episode(task: Task, policy: Policy, world: World) -> None:
    raise AssertionError("peers of a copy play no episode")


def _variables(simulator: SimulatorSpec, local_rank: int) -> dict[str, str]:
    return simulator_environment(simulator, code_folders(os.environ), local_rank, os.environ)


def episode_bounds(spec: RLJobSpec, simulator: SimulatorSpec) -> Bounds:
    """How long an episode of the job may get: a row for each decision."""
    decisions = simulator.num_decisions
    return Bounds(decisions, decisions, spec.rollout.max_response_tokens, spec.longest_row)


def require_room(policy: ActionPolicy, spec: RLJobSpec) -> None:
    """Raises InvalidJob where a row has no room for a decision."""
    most, wanted = spec.rollout.max_response_tokens, policy.num_tokens
    if wanted > most:
        raise InvalidJob(
            f"rollout.maxResponseTokens is {most}, and a decision of the policy has {wanted} action tokens; write "
            f"{wanted}"
        )


def listed_data(spec: RLJobSpec, access: DataAccess) -> tuple[tuple[DatasetSpec, ...], tuple[DatasetSpec, ...]]:
    """Data sets to train on and to validate on: those of the job, and in their place what its simulator lists. Raises
    InvalidJob, StorageError."""
    simulator, train, validation = spec.rollout.simulator, spec.data.train, spec.data.validation
    if simulator is None or (train and simulator.evaluation is None):
        return train, validation
    lists = TaskLists(simulator, spec.data.prompt_column, access.cache_dir / FOLDER, simulator_settings(simulator))
    limits, variables = pool_limits(simulator, processes=1), _variables(simulator, 0)
    if simulator.evaluation is not None:
        validation = (lists.validation(simulator.evaluation, limits, variables),)
    return train or (lists.train(limits, variables),), validation
