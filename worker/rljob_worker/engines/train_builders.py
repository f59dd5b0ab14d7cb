"""Engines that train or score, built from a plan. What they are made of is imported when one is built."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rljob_api.planning.plan import EnginePlan, Plan
from rljob_worker.engines.protocols import TrainedModel, TrainEngine
from rljob_worker.engines.refusals import (
    refuse_actions,
    refuse_sight,
    refuse_spread_decisions,
    refuse_unbuilt_parallelism,
    require_shareable,
)

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from rljob_worker.engines.fsdp import TrainSettings
    from rljob_worker.engines.parallel.mesh import ProcessMesh


def fsdp_engine(
    plan: Plan,
    engine: EnginePlan,
    device: torch.device,
    mesh: ProcessMesh | None,
    is_loaded_next: bool,
    trained: TrainedModel | None,
) -> TrainEngine:
    refuse_unbuilt_parallelism(engine, "cp", "tp", "ep")
    refuse_spread_decisions(engine)
    return _sharded(plan, engine, device, mesh, is_loaded_next, trained)


def megatron_engine(
    plan: Plan,
    engine: EnginePlan,
    device: torch.device,
    mesh: ProcessMesh | None,
    is_loaded_next: bool,
    trained: TrainedModel | None,
) -> TrainEngine:
    refuse_unbuilt_parallelism(engine, "cp", "tp", "ep", "pp")
    refuse_sight(engine)
    refuse_actions(engine, "Megatron computes", "write training.engine: FSDP")
    return _sharded(plan, engine, device, mesh, is_loaded_next, trained)


def _sharded(
    plan: Plan,
    engine: EnginePlan,
    device: torch.device,
    mesh: ProcessMesh | None,
    is_loaded_next: bool,
    trained: TrainedModel | None,
) -> TrainEngine:
    """A model of transformers with layers of any library, sharded by FSDP2."""
    from rljob_worker.engines.fsdp import FSDPEngine
    from rljob_worker.engines.models import Adapter, DrawnWeights, WeightFiles
    from rljob_worker.engines.models.mirror import small_files
    from rljob_worker.engines.planned_model import empty_model, layer_library_of, planned_reader

    require_shareable(plan, engine)
    is_loaded_next = is_loaded_next and engine.adapter is None  # else what is loaded leaves the model itself out
    settings, layers = train_settings(plan, engine), layer_library_of(engine, device)
    if trained is not None:
        with small_files(trained.path) as path:
            model = empty_model(plan, engine, path, settings.dtype)
            settings = _compiling(plan, settings, model)
            reader = planned_reader(plan, model, path)  # in the run's directory there is no processor
        scorer = FSDPEngine(model, settings, device, mesh, layers=layers, reader=reader)
        scorer.load(trained.state, weights_only=True)
        return scorer
    adapter = Adapter.of(engine)
    dtype = settings.master_dtype if adapter is None else settings.dtype
    is_drawn = engine.initialise == "Random"
    files = None if is_drawn or is_loaded_next else WeightFiles.find(engine.path)
    model = empty_model(plan, engine, engine.path, dtype)
    settings = _compiling(plan, settings, model)
    drawn = DrawnWeights.of(model, plan.spec.seed) if is_drawn and not is_loaded_next else None
    reader = planned_reader(plan, model, engine.path)
    return FSDPEngine(model, settings, device, mesh, files or drawn, adapter, layers, reader)


def _compiling(plan: Plan, settings: TrainSettings, model: PreTrainedModel) -> TrainSettings:
    """What the plan decided to compile stays as it is where that cannot be; what the job asks for fails."""
    from rljob_worker.engines.fsdp.compiling import can_compile

    is_left_to_plan = settings.compile and plan.spec.training.compile is None
    return replace(settings, compile=can_compile(model)) if is_left_to_plan else settings


def train_settings(plan: Plan, engine: EnginePlan) -> TrainSettings:
    """How the job trains one model."""
    from rljob_worker.engines.fsdp import TrainSettings

    spec = plan.spec
    training, critic = spec.training, spec.algorithm.critic
    own = critic if plan.has_value_head(engine) else None
    waiting = 0 if own is not None or critic is None else critic.warmup_steps  # steps in which only the critic learns
    return TrainSettings(
        temperature=spec.rollout.temperature,
        tokens_per_micro_batch=training.tokens_per_micro_batch,
        patches_per_micro_batch=training.patches_per_micro_batch,
        precision=plan.precision,
        trainable=engine.trainable,
        learning_rate=training.learning_rate if own is None else own.learning_rate,
        schedule=training.schedule,
        warmup_steps=training.warmup_steps,
        total_steps=max(1, (training.schedule_steps or spec.stop.steps) - waiting) * spec.num_optimizer_steps,
        weight_decay=training.weight_decay,
        betas=(training.betas[0], training.betas[1]),
        max_grad_norm=training.max_grad_norm,
        activation_checkpointing=engine.recomputes,
        offload_optimizer=engine.offload.optimizer,
        offload_parameters=engine.offload.parameters,
        optimizer=training.optimizer.name,
        states=training.optimizer.states,
        compile=engine.compiles,
        router_aux_loss_coefficient=training.router_aux_loss_coefficient,
        follows_routes=training.router_replay == "Rollout" and engine.trainable and own is None,
        vision_learning_rate=_vision_learning_rate(plan, engine),
        seed=spec.seed,
    )


def _vision_learning_rate(plan: Plan, engine: EnginePlan) -> float | None:
    """Peak of a vision tower that is trained; a critic's and a model of rewards' is not."""
    if not engine.trainable or plan.has_value_head(engine):
        return None
    vision = plan.spec.source_of(engine.model).vision
    if not vision.train:
        return None
    return plan.spec.training.learning_rate if vision.learning_rate is None else vision.learning_rate
