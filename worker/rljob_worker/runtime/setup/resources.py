"""What one rank needs to run its schedule, and no more: engines, tokenizer, prompts, reward processes."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from rljob_api.catalogue.columns import data_columns
from rljob_api.catalogue.stages import REWARD_MODEL, STAGES
from rljob_api.pipeline.meshes import Mesh
from rljob_api.planning.plan import EnginePlan, GroupPlan, Plan, StagePlan
from rljob_api.v1alpha1 import RewardSpec, RLJobSpec
from rljob_api.vocabulary.keys import ACTOR
from rljob_api.vocabulary.quantity import format_bytes
from rljob_worker.checkpoint.trained_model import trained_elsewhere
from rljob_worker.data.dataset import PromptDataset
from rljob_worker.data.source import DataAccess
from rljob_worker.engines.parallel.mesh import ProcessMesh, build_meshes
from rljob_worker.engines.protocols import ScoringEngine, TrainEngine
from rljob_worker.engines.registry import build_base, build_rollout_engine, build_train_engine
from rljob_worker.engines.rollout.protocol import RolloutEngine
from rljob_worker.errors import InvalidJob
from rljob_worker.model_shapes import shape_at
from rljob_worker.rewards.running.runner import RewardRunner
from rljob_worker.runtime.memory_phases import begin_generation
from rljob_worker.runtime.setup.devices import cpu_has_bfloat16, slow_precision
from rljob_worker.runtime.validation import Validation
from rljob_worker.stages.stage import Resources
from rljob_worker.start_phases import phase

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
) -> Resources:
    """Engines of this group, and what its Rollout, Sample and Reward stages read with. Collective over the group.
    loaded_next: names of engines whose weights come out of a checkpoint, so that their models' files are not read; nor
    are those of models that generate with what others train, which is theirs before anything is generated."""
    if rank == 0 and (warning := slow_precision(plan, group, cpu_has_bfloat16())):
        log.warning(warning)
    engines = [engine for engine in plan.engines if engine.group == group.name]
    stages = [plan.stage(name) for name in group.schedule]
    meshes = build_meshes(
        [*(engine.mesh for engine in engines), *(stage.mesh for stage in stages)],
        rank,
        device,
        deadline_seconds=plan.spec.data_buffer.deadline_seconds,
    )
    runs = {stage.run for stage in stages}
    led = {stage.run for stage in stages if stage.mesh.is_row_leader(rank)}
    uses_text = bool(runs & {*GENERATING, "Reward", REWARD_MODEL}) or any(":" in run for run in runs)
    tokenizer = load_tokenizer(plan) if uses_text else None
    rewards = reward_runner(plan, group) if needs_rewards(plan, led) else None
    with phase("models") as told:
        train = train_engines(plan, [each for each in engines if each.kind == "Train"], device, meshes, loaded_next)
        rollout = rollout_engines(plan, [each for each in engines if each.kind == "Rollout"], device, meshes, train)
        told.found = described_models(plan, {each.model for each in engines})
    dataset = train_dataset(plan, tokenizer, access) if runs & GENERATING else None
    if rewards is not None:
        with phase("rewards"):
            rewards.check()  # after the engines: reward processes import while models load
    return Resources(
        plan=plan,
        train_engines=train,
        rollout_engines=rollout,
        tokenizer=tokenizer,
        dataset=dataset,
        rewards=rewards,
        meshes=meshes,
        base_models=base_models(plan, engines, train),
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
        each.model: build_train_engine(
            plan,
            each,
            device,
            meshes[each.mesh],
            is_loaded_next=each.name in loaded_next,
            trained=trained_elsewhere(plan, each),
        )
        for each in engines
        if each.base_of is None
    }


def base_models(
    plan: Plan, engines: Iterable[EnginePlan], trained: Mapping[str, TrainEngine]
) -> dict[str, ScoringEngine]:
    """What scores with the model under an adapter that is trained beside it, by model."""
    bases = {each.model: each.base_of for each in engines if each.base_of is not None}
    return {model: build_base(trained[plan.engine(adapted).model]) for model, adapted in bases.items()}


def rollout_engines(
    plan: Plan,
    engines: Sequence[EnginePlan],
    device: torch.device,
    meshes: Mapping[Mesh, ProcessMesh],
    trained: Mapping[str, TrainEngine],
) -> dict[str, RolloutEngine]:
    """What generates in a group, by model, beside what is `trained` there: an engine that measures while it is built
    what is free of its device finds it as it is when it generates. Collective."""
    if engines:
        begin_generation(trained.values())
    synced = {edge.target for edge in plan.weights}
    return {
        each.model: build_rollout_engine(
            plan, each, device, trained.get(each.model), meshes[each.mesh], is_loaded_next=each.name in synced
        )
        for each in engines
    }


def needs_rewards(plan: Plan, runs: Iterable[str]) -> bool:
    """Reward functions run where responses are rewarded, and where validation generates: on leaders of these stages."""
    runs = set(runs)
    here = bool(runs & {"Reward", "Sample"}) or (bool(runs & GENERATING) and bool(plan.spec.data.validation))
    return bool(reward_functions(plan.spec)) and here


def reward_functions(spec: RLJobSpec) -> list[RewardSpec]:
    """Rewards that are no models of the job's own."""
    return [reward for reward in spec.rewards if reward.model is None]


def load_tokenizer(plan: Plan) -> Any:
    """The actor's tokenizer. Raises InvalidJob naming the directory."""
    from transformers import AutoTokenizer

    path = plan.spec.source_of(ACTOR).path
    try:
        with phase("tokenizer"):
            return AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError, KeyError) as error:
        raise InvalidJob(f"models: {why_no_tokenizer(path, error)}") from error


def why_no_tokenizer(path: str, error: Exception) -> str:
    """What is wrong with the place a tokenizer was to come from, and what to do."""
    if Path(path).is_dir():
        there = ", ".join(sorted(each.name for each in Path(path).iterdir())) or "nothing"
        return (
            f"no tokenizer can be loaded from {path}, which holds {there}; it needs tokenizer.json and "
            "tokenizer_config.json beside the weights"
        )
    reason = str(error).partition("\n")[0]
    return (
        f"{path!r} is no directory beside the job's YAML, and the Hugging Face hub did not give it either: {reason}; "
        "correct the path, or download the model and name its directory"
    )


def train_dataset(plan: Plan, tokenizer: Any, access: DataAccess) -> PromptDataset:
    data = plan.spec.data
    with phase("data") as told:
        dataset = PromptDataset(
            data,
            sources=data.train,
            columns=data_columns(plan.spec),
            tokenizer=tokenizer,
            access=access,
            seed=plan.spec.seed,
            template_arguments=plan.spec.source_of(ACTOR).chat_template,
        )
        told.found = f"{len(dataset):,} rows, {dataset.num_filtered:,} longer than maxPromptTokens left out"
    return dataset


def reward_runner(plan: Plan, group: GroupPlan) -> RewardRunner:
    """Reward processes of this worker: the host's cores shared by its workers, at most four each."""
    cores = os.cpu_count() or 1
    processes = max(1, min(4, cores // group.workers_per_host))
    return RewardRunner(reward_functions(plan.spec), processes, columns=data_columns(plan.spec))


def build_validation(
    plan: Plan, schedule: Iterable[StagePlan], rank: int, resources: Resources, access: DataAccess
) -> Validation | None:
    """This rank's share of validation; None where the job has no validation data or this group does not generate."""
    data = plan.spec.data
    rollout = next((stage for stage in schedule if stage.run in GENERATING), None)
    if not data.validation or rollout is None or not plan.spec.rewards:
        return None
    dataset = PromptDataset(
        data,
        sources=data.validation,
        columns=data_columns(plan.spec),
        tokenizer=resources.tokenizer,
        access=access,
        seed=None,
        max_rows=plan.spec.validation.max_rows,
        template_arguments=plan.spec.source_of(ACTOR).chat_template,
    )
    engine = resources.rollout_engines[rollout.models[0]]
    dp_rank, dp_size = rollout.mesh.dp_rank(rank), rollout.mesh.dp
    return Validation(plan, dataset, engine, resources.rewards, resources.tokenizer, dp_rank, dp_size)
