"""Engines that generate, built from a plan: the builders that `rljob_api.catalogue.rollout_engines` names. What an
engine is made of is imported when one is built."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from rljob_api.planning.plan import EnginePlan, Plan
from rljob_worker.engines.protocols import TrainEngine
from rljob_worker.engines.refusals import refuse_actions, refuse_unbuilt_parallelism, require_shareable
from rljob_worker.engines.rollout.protocol import RolloutEngine

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from rljob_worker.engines.models.policy_by_layers import PolicyByLayers
    from rljob_worker.engines.parallel.mesh import ProcessMesh
    from rljob_worker.engines.rollout.vocabulary import Vocabulary


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
    from rljob_worker.engines.planned_model import planned_reader
    from rljob_worker.engines.rollout.transformers import OneForwardRollout, TransformersRollout
    from rljob_worker.engines.rollout.transformers.static_steps import CUDAGraphs, can_record

    refuse_unbuilt_parallelism(engine)
    owns_weights = not (isinstance(trained_by, FSDPEngine) and trained_by.can_lend_weights)
    if isinstance(trained_by, FSDPEngine) and not owns_weights:
        model = trained_by.model
    else:
        model = _unread_policy(plan, engine, device) if is_loaded_next else _policy(plan, engine, device)
        model.requires_grad_(False)
    ends, vocabulary = _endings(plan, engine)
    free = partial(free_memory, device, plan.group(engine.group).workers_per_host)
    fraction = plan.spec.rollout.memory_fraction
    reader, frozen = planned_reader(plan, model, engine.path), _frozen(plan, engine)
    is_eager = plan.spec.rollout.engine_options.enforce_eager
    # what models that see compute has been recorded on no device yet
    is_recorded = (reader is None and can_record(model, device)) if is_eager is None else not is_eager
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
        record=CUDAGraphs(device) if is_recorded else None,
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
    from rljob_worker.engines.planned_model import planned_reader
    from rljob_worker.engines.rollout.vllm.library import load_start
    from rljob_worker.engines.rollout.vllm.plan_settings import settings_of

    refuse_unbuilt_parallelism(engine, "tp")
    refuse_actions(engine, "vLLM samples from", "write rollout.engine: Transformers")
    require_shareable(plan, engine)
    settings = settings_of(plan, engine)
    start = load_start(batch_invariant=settings.batch_invariant)
    policy = _policy_by_layers(plan, engine)
    ends, vocabulary = _endings(plan, engine)
    reader, frozen = planned_reader(plan, policy.model, engine.path), _frozen(plan, engine)
    return start(settings, engine.path, policy, ends, device, vocabulary, mesh, reader, frozen)


def http_engine(
    plan: Plan,
    engine: EnginePlan,
    device: torch.device,
    trained_by: TrainEngine | None,
    mesh: ProcessMesh | None,
    is_loaded_next: bool,
) -> RolloutEngine:
    """In the server of this rank, which is given weights as it is given every later ones."""
    from rljob_worker.engines.fsdp.settings import DTYPES
    from rljob_worker.engines.rollout.http.starting import start

    refuse_unbuilt_parallelism(engine)
    refuse_actions(engine, "a server samples from", "write rollout.engine: Transformers")
    ends, vocabulary = _endings(plan, engine)
    rank = 0 if mesh is None else mesh.rank
    built = start(plan, engine, DTYPES[plan.precision], rank, ends, vocabulary, _frozen(plan, engine))
    if not is_loaded_next:
        built.load_weights(_policy_by_layers(plan, engine).tensors(), 0)
    return built


def _policy_by_layers(plan: Plan, engine: EnginePlan) -> PolicyByLayers:
    """What the engine begins with, read as it goes into it, in the precision of the job."""
    from rljob_worker.engines.fsdp.settings import DTYPES
    from rljob_worker.engines.models.policy_by_layers import PolicyByLayers

    dtype = DTYPES[plan.precision]
    if engine.initialise == "Random":
        return PolicyByLayers.random(engine.path, dtype, plan.spec.seed)
    return PolicyByLayers.of_files(engine.path, dtype)


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


def _frozen(plan: Plan, engine: EnginePlan) -> Callable[[str], bool]:
    """Which parameters of a policy nobody trains: new weights come without them once they have come."""
    from rljob_worker.engines.models.vision import is_of_tower

    trains = plan.spec.source_of(engine.model).vision.train
    return lambda name: not trains and is_of_tower(name)


def _endings(plan: Plan, engine: EnginePlan) -> tuple[tuple[int, ...], Vocabulary | None]:
    """Tokens that end a response, and the vocabulary by which the job's stop texts are matched."""
    from rljob_worker.engines.models import end_token_ids, model_config
    from rljob_worker.engines.rollout.stop_strings import vocabulary_of

    config, rollout = model_config(engine.path), plan.spec.rollout
    vocabulary = vocabulary_of(engine.path, config, rollout.stop, rollout.stop_token_ids)
    return end_token_ids(engine.path, config), vocabulary
