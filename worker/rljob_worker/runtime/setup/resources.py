"""What one rank needs to run its schedule, and no more: engines, tokenizer, prompts, reward processes."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from rljob_api.catalogue.columns import reward_columns_of_rows, task_columns
from rljob_api.catalogue.stages import REWARD_MODEL, STAGES
from rljob_api.pipeline.meshes import Mesh
from rljob_api.planning.plan import EnginePlan, GroupPlan, Plan, StagePlan
from rljob_api.v1alpha1 import RewardSpec, RLJobSpec
from rljob_api.vocabulary.quantity import format_bytes
from rljob_worker.checkpoint.trained_model import trained_elsewhere
from rljob_worker.data.dataset import PromptDataset, PromptPictures
from rljob_worker.data.source import DataAccess
from rljob_worker.engines.parallel.mesh import ProcessMesh, build_meshes
from rljob_worker.engines.protocols import ScoringEngine, TrainEngine
from rljob_worker.engines.registry import build_base, build_rollout_engine, build_train_engine
from rljob_worker.engines.rollout.protocol import RolloutEngine
from rljob_worker.model_shapes import shape_at
from rljob_worker.process.start_phases import phase
from rljob_worker.rewards.forms import SHOWN
from rljob_worker.rewards.running.runner import RewardRunner
from rljob_worker.runtime.memory_phases import begin_generation
from rljob_worker.runtime.setup.conversations import build_conversations
from rljob_worker.runtime.setup.devices import cpu_has_bfloat16, slow_precision
from rljob_worker.runtime.setup.pictures import picture_processor
from rljob_worker.runtime.setup.simulators import build_episodes, listed_data
from rljob_worker.runtime.setup.slow_reading import slow_reading_named
from rljob_worker.runtime.setup.tokenizers import load_tokenizer, require_tokens_of_policies
from rljob_worker.runtime.validation import Validation
from rljob_worker.stages.stage import Resources
from rljob_worker.storage.paths import StoragePath

log = logging.getLogger(__name__)

GENERATING = {name for name, stage in STAGES.items() if stage.use == "Generates"}
"""Stages that read prompts and make rows of them."""


def build_resources(
    plan: Plan,
    group: GroupPlan,
    rank: int,
    device: torch.device,
    access: DataAccess,
    loaded_next: Collection[str] = (),
    home: StoragePath | None = None,
) -> Resources:
    """Engines of this group, and what its Rollout, Sample and Reward stages read with. Collective over the group.
    loaded_next: names of engines whose weights come out of a checkpoint, so that their models' files are not read; nor
    are those of models that generate with what others train, which is theirs before anything is generated. home: what
    holds the run's checkpoints, and journals of conversations beside them."""
    if rank == 0 and (warning := slow_precision(plan, group, cpu_has_bfloat16())):
        log.warning(warning)
    engines = [engine for engine in plan.engines if engine.group == group.name]
    planned = [plan.stage(name) for name in group.schedule]
    stages = [stage for stage in planned if stage.generated_in is None]
    meshes = build_meshes(
        [*(engine.mesh for engine in engines), *(stage.mesh for stage in planned)],
        rank,
        device,
        deadline_seconds=plan.spec.data_buffer.deadline_seconds,
    )
    reading = dict.fromkeys(plan.policy_of(stage.name) for stage in stages if reads_text(stage.run))
    reading |= dict.fromkeys(model for stage in stages if stage.run in GENERATING for model in stage.models)
    tokenizers = {policy: load_tokenizer(plan, policy) for policy in reading}
    require_tokens_of_policies(plan, stages)
    rewards = reward_runners(plan, group, [stage for stage in stages if stage.mesh.is_row_leader(rank)])
    with phase("models") as progress, slow_reading_named(plan.spec.data_buffer.deadline_seconds):
        train = train_engines(
            plan, [engine for engine in engines if engine.kind == "Train"], device, meshes, loaded_next
        )
        rollout = rollout_engines(
            plan, [engine for engine in engines if engine.kind == "Rollout"], device, meshes, train
        )
        progress.found = described_models(plan, {engine.model for engine in engines})
    generating = [stage for stage in stages if stage.run in GENERATING]
    datasets = {
        stage.models[0]: train_dataset(plan, stage.models[0], tokenizers[stage.models[0]], access)
        for stage in generating
    }
    if rewards:
        with phase("rewards"):
            for runner in rewards.values():
                runner.check()  # after the engines: reward processes import while models load
    conversations = build_conversations(plan, group, rank, generating, rollout, tokenizers, meshes, access, home)
    conversations |= build_episodes(plan, group, rank, generating, rollout, meshes, access, home)
    return Resources(
        plan=plan,
        train_engines=train,
        rollout_engines=rollout,
        tokenizers=tokenizers,
        datasets=datasets,
        rewards=rewards,
        meshes=meshes,
        base_models=base_models(plan, engines, train),
        conversations=conversations,
    )


def described_models(plan: Plan, names: Iterable[str]) -> str:
    """`actor of 1.5M parameters`, as far as their configurations say."""
    sources = {name: plan.spec.source_of(name).path for name in sorted(names)}
    shapes = {name: shape_at(Path(path)) for name, path in sources.items()}
    return ", ".join(
        f"{name} of {shape.parameters / 1e6:,.1f}M parameters, {format_bytes(shape.parameters * 4)} in Float32"
        for name, shape in shapes.items()
        if shape is not None
    )


def train_engines(
    plan: Plan,
    engines: Iterable[EnginePlan],
    device: torch.device,
    meshes: Mapping[Mesh, ProcessMesh],
    loaded_next: Collection[str] = (),
) -> dict[str, TrainEngine]:
    """What trains in a group, or scores with a model of its own, by model. Collective."""
    return {
        engine.model: build_train_engine(
            plan,
            engine,
            device,
            meshes[engine.mesh],
            is_loaded_next=engine.name in loaded_next,
            trained=trained_elsewhere(plan, engine),
        )
        for engine in engines
        if engine.base_of is None
    }


def base_models(
    plan: Plan, engines: Iterable[EnginePlan], trained: Mapping[str, TrainEngine]
) -> dict[str, ScoringEngine]:
    """What scores with the model under an adapter that is trained beside it, by model."""
    bases = {engine.model: engine.base_of for engine in engines if engine.base_of is not None}
    return {model: build_base(trained[plan.engine(adapted).model]) for model, adapted in bases.items()}


def rollout_engines(
    plan: Plan,
    engines: Sequence[EnginePlan],
    device: torch.device,
    meshes: Mapping[Mesh, ProcessMesh],
    trained: Mapping[str, TrainEngine],
) -> dict[str, RolloutEngine]:
    """What generates in a group, by model, besides what is `trained` there: an engine that measures while it is built
    what is free of its device finds it as it is when it generates. Collective."""
    if engines:
        begin_generation(trained.values())
    synced = {edge.target for edge in plan.weights}
    return {
        engine.model: build_rollout_engine(
            plan, engine, device, trained.get(engine.model), meshes[engine.mesh], is_loaded_next=engine.name in synced
        )
        for engine in engines
    }


def reads_text(run: str) -> bool:
    """Whether a stage has prompts or responses as text: a user's own may ask for it."""
    return run in {*GENERATING, "Reward", REWARD_MODEL} or ":" in run


def needs_rewards(spec: RLJobSpec, runs: Iterable[str]) -> bool:
    """Reward functions run where responses are rewarded, and where validation generates: on leaders of these stages."""
    runs = set(runs)
    here = bool(runs & {"Reward", "Sample"}) or (bool(runs & GENERATING) and spec.validates)
    return bool(reward_functions(spec)) and here


def reward_functions(spec: RLJobSpec) -> list[RewardSpec]:
    """Rewards that are not models of the job's own."""
    return [reward for reward in spec.rewards if reward.model is None]


def prompt_pictures(spec: RLJobSpec, policy: str) -> PromptPictures | None:
    """What a policy sees of the pictures and videos of its data; None for a job whose data has none. Raises InvalidJob
    for a checkpoint that takes none, or whose processor is not there or of another model."""
    data = spec.data
    shows = data.images_column is not None or data.videos_column is not None
    processor = picture_processor(spec, policy) if shows else None
    if processor is None:
        return None
    return PromptPictures(data.images_column, processor, data.image.allow_http, data.videos_column)


def train_dataset(plan: Plan, policy: str, tokenizer: Any, access: DataAccess) -> PromptDataset:
    """What a policy learns from: policies have the same prompts in a step, each as its own tokenizer has them."""
    data = plan.spec.data
    with phase("data") as progress:
        dataset = PromptDataset(
            data,
            sources=listed_data(plan.spec, access)[0],
            columns=task_columns(plan.spec_of(policy)),
            tokenizer=tokenizer,
            access=access,
            seed=plan.spec.seed,
            template_arguments=plan.spec.source_of(policy).chat_template,
            pictures=prompt_pictures(plan.spec, policy),
            has_messages=plan.spec.rollout.played is not None,
        )
        progress.found = f"{len(dataset):,} rows, {dataset.num_filtered:,} longer than maxPromptTokens left out"
    return dataset


def given_pictures(spec: RLJobSpec) -> tuple[str, ...]:
    """What rows of a model that sees have besides, for a reward function."""
    return SHOWN if spec.sees else ()


def reward_runners(plan: Plan, group: GroupPlan, led: Sequence[StagePlan]) -> dict[str, RewardRunner]:
    """By policy, reward processes of this worker: the host's cores shared by its workers, at most four each. led: the
    stages whose rows it leads."""
    runs: dict[str, set[str]] = {}
    for stage in led:
        runs.setdefault(plan.policy_of(stage.name), set()).add(stage.run)
    specs = {policy: plan.spec_of(policy) for policy, here in runs.items() if needs_rewards(plan.spec_of(policy), here)}
    processes = max(1, min(4, (os.cpu_count() or 1) // group.workers_per_host))
    return {
        policy: RewardRunner(
            reward_functions(spec), processes, columns=(*reward_columns_of_rows(spec), *given_pictures(spec))
        )
        for policy, spec in specs.items()
    }


def build_validations(
    plan: Plan, schedule: Iterable[StagePlan], rank: int, resources: Resources, access: DataAccess
) -> dict[str, Validation]:
    """By policy, this rank's share of validation; none where the job has no validation data or this group does not
    generate."""
    here = [stage for stage in schedule if stage.run in GENERATING and stage.generated_in is None]
    stages = here if plan.spec.validates and plan.spec.rewards else []
    return {stage.models[0]: _validation(plan, stage, rank, resources, access) for stage in stages}


def _validation(plan: Plan, stage: StagePlan, rank: int, resources: Resources, access: DataAccess) -> Validation:
    """Validation of the policy that a stage generates with."""
    policy = stage.models[0]
    data, spec, tokenizer = plan.spec.data, plan.spec_of(policy), resources.tokenizers[policy]
    dataset = PromptDataset(
        data,
        sources=listed_data(plan.spec, access)[1],
        columns=task_columns(spec),
        tokenizer=tokenizer,
        access=access,
        seed=None,
        max_rows=spec.validation.max_rows,
        template_arguments=spec.source_of(policy).chat_template,
        pictures=prompt_pictures(plan.spec, policy),
        has_messages=spec.rollout.played is not None,
    )
    engine, rewards = resources.rollout_engines[policy], resources.rewards.get(policy)
    conversations, copy = resources.conversations.get(policy), resources.meshes[stage.mesh]
    dp_rank, dp_size = stage.mesh.dp_rank(rank), stage.mesh.dp
    return Validation(
        spec, policy, dataset, engine, rewards, tokenizer, dp_rank, dp_size, conversations=conversations, copy=copy
    )
