"""Engines that train or score, built from a plan. What they are made of is imported when one is built."""

from __future__ import annotations

from dataclasses import dataclass, replace
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


@dataclass(frozen=True, slots=True)
class TrainRequest:
    """An engine that is to be built, as `registry.build_train_engine` is asked for it."""

    plan: Plan
    engine: EnginePlan
    device: torch.device
    mesh: ProcessMesh | None
    is_loaded_next: bool
    trained: TrainedModel | None


def fsdp_engine(request: TrainRequest) -> TrainEngine:
    refuse_unbuilt_parallelism(request.engine, "cp", "tp", "ep")
    refuse_spread_decisions(request.engine)
    return _sharded(request)


def megatron_engine(request: TrainRequest) -> TrainEngine:
    refuse_unbuilt_parallelism(request.engine, "cp", "tp", "ep", "pp")
    refuse_sight(request.engine)
    refuse_actions(request.engine, "Megatron computes", "write training.engine: FSDP")
    return _sharded(request)


def _sharded(request: TrainRequest) -> TrainEngine:
    """A model of transformers with layers of any library, sharded by FSDP2."""
    require_shareable(request.plan, request.engine)
    return _read(request) if request.trained is None else _scoring(request, request.trained)


def _scoring(request: TrainRequest, trained: TrainedModel) -> TrainEngine:
    """With what a run trained."""
    from rljob_worker.engines.fsdp import FSDPEngine
    from rljob_worker.engines.models.sources.mirror import small_files
    from rljob_worker.engines.planned_model import empty_model, layer_library_of, planned_reader

    plan, engine, settings = request.plan, request.engine, train_settings(request.plan, request.engine)
    with small_files(trained.path) as path:
        model = empty_model(plan, engine, path, settings.dtype)
        settings = _compiling(plan, settings, model)
        reader = planned_reader(plan, model, path)  # in the run's directory there is no processor
    layers = layer_library_of(engine, request.device)
    scorer = FSDPEngine(model, settings, request.device, request.mesh, layers=layers, reader=reader)
    scorer.load(trained.state, weights_only=True)
    return scorer


def _read(request: TrainRequest) -> TrainEngine:
    """With the files of `engine.path`, or with what is drawn or loaded in their place."""
    from rljob_worker.engines.fsdp import FSDPEngine
    from rljob_worker.engines.models import Adapter, DrawnWeights, WeightFiles
    from rljob_worker.engines.planned_model import empty_model, layer_library_of, planned_reader

    plan, engine, settings = request.plan, request.engine, train_settings(request.plan, request.engine)
    adapter = Adapter.of(engine)
    is_loaded_next = request.is_loaded_next and adapter is None  # else what is loaded leaves the model itself out
    model = empty_model(plan, engine, engine.path, settings.master_dtype if adapter is None else settings.dtype)
    weights: WeightFiles | DrawnWeights | None = None
    if not is_loaded_next:
        is_drawn = engine.initialise == "Random"
        weights = DrawnWeights.of(model, plan.spec.seed) if is_drawn else WeightFiles.find(engine.path)
    settings, layers = _compiling(plan, settings, model), layer_library_of(engine, request.device)
    reader = planned_reader(plan, model, engine.path)
    return FSDPEngine(model, settings, request.device, request.mesh, weights, adapter, layers, reader)


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
