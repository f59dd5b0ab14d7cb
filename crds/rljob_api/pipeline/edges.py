"""What crosses between stages, and whether rows have to move for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Protocol

from rljob_api.pipeline.meshes import EngineKind, Mesh, mesh_of, num_replicas, num_workers_of, ranks_per_copy
from rljob_api.pipeline.resolution import Resolution, ResolvedStage
from rljob_api.v1alpha1 import Balance


class RowLayout(Protocol):
    """How the rows of a stage are laid out."""

    @property
    def group(self) -> str: ...
    @property
    def mesh(self) -> Mesh: ...
    @property
    def balance(self) -> Balance: ...
    @property
    def scatters_rows(self) -> bool: ...


@dataclass(frozen=True)
class StageLayout:
    """The layout of one stage."""

    group: str
    mesh: Mesh
    balance: Balance
    scatters_rows: bool
    needs_groups: bool = False

    @property
    def keeps_groups_whole(self) -> bool:
        """Whether all rows of a group come to one copy."""
        return self.balance == "None" or self.needs_groups


def stage_layout(resolution: Resolution, stage: ResolvedStage, group: str) -> StageLayout:
    """A stage's layout in `group`: its engine's mesh, or data parallelism over the whole group."""
    mesh = mesh_of(resolution.spec, group, _kind(resolution, stage))
    scatters_rows = stage.built_in is not None and stage.built_in.scatters_rows
    needs_groups = stage.built_in is not None and stage.built_in.needs_groups
    return StageLayout(group, mesh, stage.spec.balance, scatters_rows, needs_groups)


def divides_workers(resolution: Resolution, stage: ResolvedStage, group: str) -> bool:
    """Whether the workers of `group` are a whole number of copies of what the stage uses, and of replicas."""
    kind = _kind(resolution, stage)
    size = prod(ranks_per_copy(resolution.spec, kind)) * num_replicas(resolution.spec, kind)
    return num_workers_of(resolution.spec, group) % size == 0


def columns_by_producer(resolution: Resolution, stage: ResolvedStage) -> Mapping[str, tuple[str, ...]]:
    """Which columns `stage` gets from which stage; none from one that it only comes after."""
    columns: dict[str, list[str]] = {name: [] for name in stage.spec.after}
    for column in resolution.reads_of(stage):
        for producer in resolution.makers_of(column, stage.name)[:1]:
            columns.setdefault(producer, []).append(column)
    return {producer: tuple(names) for producer, names in columns.items()}


def stays_in_place(producer: RowLayout, consumer: RowLayout) -> bool:
    """Whether every row is on the right worker already."""
    same_layout = producer.group == consumer.group and producer.mesh.lays_rows_like(consumer.mesh)
    in_place = producer.mesh.dp == 1 or not producer.scatters_rows
    return same_layout and in_place and producer.balance == consumer.balance == "None"


def _kind(resolution: Resolution, stage: ResolvedStage) -> EngineKind | None:
    if not resolution.engines_of(stage):
        return None
    return "Rollout" if stage.generates else "Train"
