"""From a plan's engine to a live one, by the library's catalogue name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from rljob_api.catalogue.rollout_engines import ROLLOUT_ENGINES
from rljob_api.planning.plan import EnginePlan, Plan
from rljob_worker.engines.protocols import ScoringEngine, TrainedModel, TrainEngine
from rljob_worker.engines.rollout.protocol import RolloutEngine
from rljob_worker.engines.train_builders import TrainRequest, fsdp_engine, megatron_engine
from rljob_worker.errors import InvalidJob
from rljob_worker.users_code.function import load_function

if TYPE_CHECKING:
    import torch

    from rljob_worker.engines.parallel.mesh import ProcessMesh

RolloutBuilder = Callable[
    [Plan, EnginePlan, "torch.device", TrainEngine | None, "ProcessMesh | None", bool], RolloutEngine
]
"""What a `DeclaredRolloutEngine` of the catalogue names; arguments are those of `build_rollout_engine`."""

TRAIN_ENGINES: dict[str, Callable[[TrainRequest], TrainEngine]] = {"FSDP": fsdp_engine, "Megatron": megatron_engine}


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
    request = TrainRequest(plan, engine, device, mesh, is_loaded_next, trained)
    return TRAIN_ENGINES[engine.library](request)


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


def _unbuilt(engine: EnginePlan, known: Iterable[str]) -> InvalidJob:
    return InvalidJob(f"engine {engine.name}: {engine.library} is not built yet; use {' or '.join(sorted(known))}")
