"""From a plan's engine to a live one, by the library's catalogue name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from rljob_api.catalogue.rollout_engines import ROLLOUT_ENGINES
from rljob_api.memory.model_shape import parse_shape
from rljob_api.planning.parallelism_problems import parallelism_problems
from rljob_api.planning.plan import EnginePlan, Plan
from rljob_worker.engines.parallel.mesh_ranks import Axis
from rljob_worker.engines.protocols import ScoringEngine, TrainedModel, TrainEngine
from rljob_worker.engines.rollout.protocol import RolloutEngine
from rljob_worker.errors import InvalidJob
from rljob_worker.users_code.function import load_function

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from rljob_worker.engines.fsdp import TrainSettings
    from rljob_worker.engines.parallel.mesh import ProcessMesh
    from rljob_worker.engines.picture_reader import PictureReader
    from rljob_worker.engines.rollout.vocabulary import Vocabulary


def build_train_engine(
    plan: Plan,
    engine: EnginePlan,
    device: torch.device,
    mesh: ProcessMesh | None = None,
    *,
    is_loaded_next: bool = False,
    trained: TrainedModel | None = None,
) -> TrainEngine:
    """Load the model and make it ready to score and, when `engine.trainable`, to update. Collective over its mesh;
    without one the process is on its own. is_loaded_next: `load` follows, so that no weights need to be read.
    trained: the model where a run trained it, in place of that in `engine.path`; it is only scored with.

    Raises InvalidJob for a path without a usable model and for parallelism that the library does not have.
    """
    if engine.library not in TRAIN_ENGINES:
        raise _unbuilt(engine, TRAIN_ENGINES)
    return TRAIN_ENGINES[engine.library](plan, engine, device, mesh, is_loaded_next, trained)


def build_rollout_engine(
    plan: Plan,
    engine: EnginePlan,
    device: torch.device,
    trained_by: TrainEngine | None = None,
    mesh: ProcessMesh | None = None,
    *,
    is_loaded_next: bool = False,
) -> RolloutEngine:
    """Load the model and make it ready to generate. Collective over its mesh; without one the process is on its own.
    `trained_by`, the engine in this process that trains the same model, may lend its weights in place of a copy;
    `load_weights` then has nothing to copy. is_loaded_next: `load_weights` follows, so that no weights need to be read.
    Raises InvalidJob."""
    declared = ROLLOUT_ENGINES.find(engine.library)
    if declared is None:
        raise _unbuilt(engine, ROLLOUT_ENGINES)
    build: RolloutBuilder = load_function(f"rollout.engine {engine.library}", declared.builder)
    return build(plan, engine, device, trained_by, mesh, is_loaded_next)


def build_base(trained: TrainEngine) -> ScoringEngine:
    """What scores with the model under the adapter that an engine of this process trains."""
    from rljob_worker.engines.fsdp import BaseModel, FSDPEngine

    assert isinstance(trained, FSDPEngine), "an adapter is trained by another kind of engine"
    return BaseModel(trained)


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


def _fsdp(
    plan: Plan,
    engine: EnginePlan,
    device: torch.device,
    mesh: ProcessMesh | None,
    is_loaded_next: bool,
    trained: TrainedModel | None,
) -> TrainEngine:
    _refuse_unbuilt_parallelism(engine, "cp", "tp", "ep")
    _refuse_spread_decisions(engine)
    return _sharded(plan, engine, device, mesh, is_loaded_next, trained)


def _megatron(
    plan: Plan,
    engine: EnginePlan,
    device: torch.device,
    mesh: ProcessMesh | None,
    is_loaded_next: bool,
    trained: TrainedModel | None,
) -> TrainEngine:
    _refuse_unbuilt_parallelism(engine, "cp", "tp", "ep", "pp")
    _refuse_sight(engine)
    _refuse_actions(engine, "Megatron computes", "write training.engine: FSDP")
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
    from rljob_worker.engines.planned_model import empty_model, layer_library_of

    _require_shareable(plan, engine)
    is_loaded_next = is_loaded_next and engine.adapter is None  # else what is loaded leaves the model itself out
    settings, layers = train_settings(plan, engine), layer_library_of(engine, device)
    if trained is not None:
        with small_files(trained.path) as path:
            model = empty_model(plan, engine, path, settings.dtype)
            settings = _compiling(plan, settings, model)
            reader = _reader(plan, model, path)  # in the run's directory there is no processor
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
    reader = _reader(plan, model, engine.path)
    return FSDPEngine(model, settings, device, mesh, files or drawn, adapter, layers, reader)


def _compiling(plan: Plan, settings: TrainSettings, model: PreTrainedModel) -> TrainSettings:
    """What the plan decided to compile stays as it is where that cannot be; what the job asks for fails."""
    from rljob_worker.engines.fsdp.compiling import can_compile

    is_left_to_plan = settings.compile and plan.spec.training.compile is None
    return replace(settings, compile=can_compile(model)) if is_left_to_plan else settings


def transformers_engine(
    plan: Plan,
    engine: EnginePlan,
    device: torch.device,
    trained_by: TrainEngine | None,
    mesh: ProcessMesh | None,
    is_loaded_next: bool,
) -> RolloutEngine:
    """On every rank a copy of its own."""
    from rljob_worker.devices.memory import free_memory
    from rljob_worker.engines.fsdp import FSDPEngine
    from rljob_worker.engines.models.actions import one_forward_of
    from rljob_worker.engines.rollout.transformers import OneForwardRollout, TransformersRollout
    from rljob_worker.engines.rollout.transformers.static_steps import CUDAGraphs

    _refuse_unbuilt_parallelism(engine)
    owns_weights = not (isinstance(trained_by, FSDPEngine) and trained_by.can_lend_weights)
    if isinstance(trained_by, FSDPEngine) and not owns_weights:
        model = trained_by.model
    else:
        model = _unread_policy(plan, engine, device) if is_loaded_next else _policy(plan, engine, device)
        model.requires_grad_(False)
    ends, vocabulary = _endings(plan, engine)
    free = partial(free_memory, device, plan.group(engine.group).workers_per_host)
    fraction = plan.spec.rollout.memory_fraction
    reader, frozen = _reader(plan, model, engine.path), _frozen(plan, engine)
    if one_forward_of(model.config) is not None:
        return OneForwardRollout(model, device, owns_weights=owns_weights, reader=reader, frozen=frozen)
    return TransformersRollout(
        model,
        device,
        ends,
        fraction,
        free,
        vocabulary,
        owns_weights=owns_weights,
        records_routes=plan.spec.training.router_replay == "Rollout",
        record=CUDAGraphs(device) if plan.spec.rollout.engine_options.enforce_eager is False else None,
        reader=reader,
        frozen=frozen,
    )


def vllm_engine(
    plan: Plan,
    engine: EnginePlan,
    device: torch.device,
    trained_by: TrainEngine | None,
    mesh: ProcessMesh | None,
    is_loaded_next: bool,
) -> RolloutEngine:
    """Its own copy of the weights, even where the same process trains them: it keeps them in a layout of its own. It
    begins with those of the files always, since it tries its memory out before it gets any others."""
    import torch

    from rljob_worker.engines.rollout.vllm.library import load_start
    from rljob_worker.engines.rollout.vllm.plan_settings import settings_of

    _refuse_unbuilt_parallelism(engine, "tp")
    _refuse_actions(engine, "vLLM samples from", "write rollout.engine: Transformers")
    _require_shareable(plan, engine)
    settings = settings_of(plan, engine)
    start = load_start(batch_invariant=settings.batch_invariant)
    model = _policy(plan, engine, torch.device("cpu"))
    ends, vocabulary = _endings(plan, engine)
    reader, frozen = _reader(plan, model, engine.path), _frozen(plan, engine)
    return start(settings, engine.path, model, ends, device, vocabulary, mesh, reader, frozen)


def http_engine(
    plan: Plan,
    engine: EnginePlan,
    device: torch.device,
    trained_by: TrainEngine | None,
    mesh: ProcessMesh | None,
    is_loaded_next: bool,
) -> RolloutEngine:
    """In the server of this rank, which is given weights as it is given every later ones."""
    import torch

    from rljob_worker.engines.fsdp.settings import DTYPES
    from rljob_worker.engines.models import checkpoint_tensors
    from rljob_worker.engines.rollout.http.starting import start

    _refuse_unbuilt_parallelism(engine)
    _refuse_actions(engine, "a server samples from", "write rollout.engine: Transformers")
    ends, vocabulary = _endings(plan, engine)
    rank = 0 if mesh is None else mesh.rank
    built = start(plan, engine, DTYPES[plan.precision], rank, ends, vocabulary, _frozen(plan, engine))
    if not is_loaded_next:
        policy = _policy(plan, engine, torch.device("cpu"))
        built.load_weights(checkpoint_tensors((name, item.detach()) for name, item in policy.named_parameters()), 0)
    return built


def _policy(plan: Plan, engine: EnginePlan, device: torch.device) -> PreTrainedModel:
    """What the engine begins with, whole, in the precision of the job."""
    from rljob_worker.engines.fsdp.settings import DTYPES
    from rljob_worker.engines.models import load_policy, random_policy

    dtype = DTYPES[plan.precision]
    if engine.initialise == "Random":
        return random_policy(engine.path, dtype, plan.spec.seed)
    return load_policy(engine.path, dtype, device)


def _unread_policy(plan: Plan, engine: EnginePlan, device: torch.device) -> PreTrainedModel:
    """A policy whose weights are not read, except those of a tower that nobody trains: they are whatever is in
    memory."""
    from rljob_worker.engines.fsdp.settings import DTYPES
    from rljob_worker.engines.models import DrawnWeights, WeightFiles, empty_policy, give_memory, parts_of

    model = empty_policy(engine.path, DTYPES[plan.precision])
    frozen, drawn = _frozen(plan, engine), None
    if engine.initialise == "Random" and any(frozen(name) for name, _ in model.named_parameters()):
        drawn = DrawnWeights.of(model, plan.spec.seed)
    give_memory(model, device)
    # what nobody trains does not come with the weights of every version
    if tower := {name: item for name, item in model.named_parameters() if frozen(name)}:
        if drawn is not None:
            drawn.fill_tensors(model, tower, parts_of)
        else:
            WeightFiles.find(engine.path).matched(model).fill(tower)
    return model


def _reader(plan: Plan, model: torch.nn.Module, path: str) -> PictureReader | None:
    """What reads the pictures of prompts for a model that sees; None in a job without pictures, and for a model that
    does not see, which refuses rows with pictures. path: the model's directory. Raises InvalidJob for a checkpoint
    without its processor."""
    from rljob_worker.engines.models.actions import acts_by_towers
    from rljob_worker.engines.models.families import sees
    from rljob_worker.engines.picture_reader import PictureReader
    from rljob_worker.vision.fused_processing import shared_fused_processor
    from rljob_worker.vision.job_budgets import picture_budget, video_budget
    from rljob_worker.vision.processing import shared_processor

    data = plan.spec.data
    backbone = getattr(model, "backbone", model)
    if acts_by_towers(model.config):
        return PictureReader.of(backbone, shared_fused_processor(path, model.config.towers[0].patch))
    if not plan.spec.sees or not sees(model.config):
        return None
    return PictureReader.of(backbone, shared_processor(path, picture_budget(data), video_budget(data)))


def _frozen(plan: Plan, engine: EnginePlan) -> Callable[[str], bool]:
    """Which parameters of a policy nobody trains: new weights come without them once they have come."""
    from rljob_worker.engines.models.vision import is_of_tower

    trains = plan.spec.source_of(engine.model).vision.train
    return lambda name: not trains and is_of_tower(name)


def _refuse_sight(engine: EnginePlan) -> None:
    from rljob_worker.engines.models import model_config
    from rljob_worker.engines.models.families import VISION_FAMILIES, sees

    if sees(config := model_config(engine.path)):
        raise InvalidJob(
            f"engine {engine.name}: Megatron computes no models that see, and {engine.path!r} is a "
            f"{VISION_FAMILIES[config.model_type]}; write training.engine: FSDP"
        )


def _refuse_actions(engine: EnginePlan, what: str, fix: str) -> None:
    from rljob_worker.engines.models import model_config
    from rljob_worker.engines.models.actions import acts

    if acts(config := model_config(engine.path)):
        raise InvalidJob(
            f"engine {engine.name}: {what} no models that act, and {engine.path!r} is one of type "
            f"{config.model_type!r} with action_tokens; {fix}"
        )


def _refuse_spread_decisions(engine: EnginePlan) -> None:
    """A pack of decisions attends in both directions, which ranks that share its tokens do not compute."""
    from rljob_worker.engines.models import model_config
    from rljob_worker.engines.models.actions import ACTION_FAMILIES

    if engine.mesh.ranks_per_copy > 1 and (name := ACTION_FAMILIES.get(model_config(engine.path).model_type)):
        raise InvalidJob(
            f"engine {engine.name}: {name} are computed by one rank for a copy, and the plan has "
            f"{engine.mesh.ranks_per_copy}; set all of training.parallelism to 1"
        )


def _endings(plan: Plan, engine: EnginePlan) -> tuple[tuple[int, ...], Vocabulary | None]:
    """Tokens that end a response, and the vocabulary by which the job's stop texts are matched."""
    from rljob_worker.engines.models import end_token_ids, model_config
    from rljob_worker.engines.rollout.stop_strings import vocabulary_of

    config, rollout = model_config(engine.path), plan.spec.rollout
    vocabulary = vocabulary_of(engine.path, config, rollout.stop, rollout.stop_token_ids)
    return end_token_ids(engine.path, config), vocabulary


def _refuse_unbuilt_parallelism(engine: EnginePlan, *built: Axis) -> None:
    """built: the axes, besides data parallelism, over which the library spreads a model."""
    for axis, name in _SPREADING.items():
        if axis not in built and (size := getattr(engine.mesh, axis)) > 1:
            raise InvalidJob(
                f"engine {engine.name}: {engine.library} does not spread a model over a {name} axis, and the plan has "
                f"{name} {size}; set parallelism.{name} to 1"
            )


def _require_shareable(plan: Plan, engine: EnginePlan) -> None:
    """Where the config was at hand, the planner has looked."""
    from rljob_worker.engines.models import model_config

    is_limited = engine.mesh.ranks_per_copy > 1 or engine.mesh.ep > 1 or engine.library == "Megatron"
    shape = parse_shape(model_config(engine.path).to_dict()) if is_limited else None
    states = plan.spec.training.optimizer.states
    for result in () if shape is None else parallelism_problems(engine, shape, states):
        raise InvalidJob(str(result))


TrainBuilder = Callable[
    [Plan, EnginePlan, "torch.device", "ProcessMesh | None", bool, TrainedModel | None], TrainEngine
]
RolloutBuilder = Callable[
    [Plan, EnginePlan, "torch.device", TrainEngine | None, "ProcessMesh | None", bool], RolloutEngine
]
"""What a `DeclaredRolloutEngine` of the catalogue names; arguments are those of `build_rollout_engine`."""

TRAIN_ENGINES: dict[str, TrainBuilder] = {"FSDP": _fsdp, "Megatron": _megatron}

_SPREADING: dict[Axis, str] = {"tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert"}


def _unbuilt(engine: EnginePlan, known: Iterable[str]) -> InvalidJob:
    return InvalidJob(f"engine {engine.name}: {engine.library} is not built yet; use {' or '.join(sorted(known))}")
