"""The engines of a worker that trains, and what its stages ask of them."""

from __future__ import annotations

import torch

from rljob_api.catalogue.columns import computes_full_kl
from rljob_api.pipeline.meshes import Mesh
from rljob_api.planning.plan import EnginePlan, Plan
from rljob_worker.batch import Batch
from rljob_worker.engines.fsdp import FSDPEngine
from rljob_worker.engines.models import ValueModel
from rljob_worker.engines.parallel.mesh import ProcessMesh, alone, build_meshes
from rljob_worker.engines.protocols import ScoringEngine
from rljob_worker.engines.registry import build_base, build_train_engine
from rljob_worker.engines.tests.builders import Distillation, PolicyGradient, ValueRegression

CPU = torch.device("cpu")


def built(made: Plan, rank: int) -> list[tuple[EnginePlan, ScoringEngine]]:
    """As a worker does, what is trained last."""
    own = [engine for engine in made.engines if engine.group == "train" and engine.kind == "Train"]
    meshes = _meshes(own, rank)
    trained = {
        item.name: build_train_engine(made, item, CPU, meshes[item.mesh]) for item in own if item.base_of is None
    }
    bases = {item.name: build_base(trained[item.base_of]) for item in own if item.base_of is not None}
    engines: dict[str, ScoringEngine] = {**trained, **bases}
    return sorted(((item, engines[item.name]) for item in own), key=lambda item: item[0].trainable)


def _meshes(own: list[EnginePlan], rank: int) -> dict[Mesh, ProcessMesh]:
    meshes = [item.mesh for item in own]
    if meshes[0].size == 1:
        return {mesh: alone(CPU) for mesh in meshes}
    return build_meshes(meshes, rank, CPU, deadline_seconds=60)


def step(made: Plan, engines: list[tuple[EnginePlan, ScoringEngine]], batch: Batch) -> None:
    """What is only asked, critics, and the policy last."""
    reference = None
    for planned, engine in engines:
        if not planned.trainable:
            engine.log_probs(batch)
            reference = engine
            continue
        assert isinstance(engine, FSDPEngine)
        if isinstance(engine.model, ValueModel):
            engine.values(batch)
            engine.update(batch, ValueRegression())
        elif computes_full_kl(made.spec):
            engine.update(batch, Distillation(), reference=reference)
        else:
            engine.update(batch, PolicyGradient())
