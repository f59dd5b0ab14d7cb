"""What crosses between stages, and whether rows have to move for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Protocol

from rljob_api.pipeline.meshes import EngineKind, Mesh, mesh_of, num_replicas, num_workers_of, ranks_per_copy
from rljob_api.pipeline.resolution import Resolution, ResolvedStage, is_elastic, lead_group_of
from rljob_api.v1alpha1 import Balance

Placed = Mapping[str, str | None]
"""The worker group of every stage; None where it is not known."""


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
    generated_in: str | None = None
    """The elastic group whose pods make the rows, which then lie in `group`."""

    @property
    def keeps_groups_whole(self) -> bool:
        """Whether all rows of a group come to one copy."""
        return self.balance == "None" or self.needs_groups


def stage_layout(resolution: Resolution, stage: ResolvedStage, placed: Placed) -> StageLayout:
    """A stage's layout in its group: its engine's mesh, or data parallelism over the whole group. placed: the group of
    every stage; that of this one is a whole number of its copies.

    Rows that an elastic group makes lie where their numbers say on all workers of the lead group, which own them."""
    group = placed[stage.name]
    assert group is not None, f"stage {stage.name} has no group"
    if is_elastic(resolution.spec, group):
        lead = lead_group_of(resolution, placed)
        assert lead is not None, "no stage updates a policy"
        return StageLayout(lead, mesh_of(resolution.spec, lead, None), "None", False, generated_in=group)
    mesh = mesh_of(resolution.spec, group, _kind(resolution, stage))
    needs_groups = stage.built_in is not None and stage.built_in.needs_groups
    layout = StageLayout(group, mesh, stage.spec.balance, False, needs_groups)
    return replace(layout, scatters_rows=_scatters_rows(resolution, stage, layout, placed))


def _scatters_rows(resolution: Resolution, stage: ResolvedStage, layout: StageLayout, placed: Placed) -> bool:
    """Whether rows lie where they were made. Those of Sample always do, and of a Rollout with `rollout.partial`: which
    groups have a place is known last. Those of another Rollout do where ranks take leases; a rank alone shares with
    nobody and takes some only where leases cut a step. Those of a Reward do that has no other input and sees them on
    the worker that made them."""
    if stage.built_in is None or stage.built_in.scatters_rows:
        return stage.built_in is not None
    if stage.generates:
        cuts = layout.mesh.dp > 1 or resolution.spec.rollout.lease_rows is not None
        return resolution.spec.rollout.partial is not None or cuts and not trains_in(resolution, layout.group, placed)
    producers = tuple(columns_by_producer(resolution, stage))
    if stage.spec.run != "Reward" or len(producers) != 1 or producers[0] not in resolution.stages:
        return False
    producer = resolution.stages[producers[0]]
    if producer.spec.run != "Rollout" or placed[producer.name] != layout.group:
        return False
    if not divides_workers(resolution, producer, layout.group):
        return False
    source = stage_layout(resolution, producer, placed)
    return source.scatters_rows and stays_in_place(source, replace(layout, scatters_rows=True))


def trains_in(resolution: Resolution, group: str, placed: Placed) -> bool:
    """Whether an engine of `group` belongs to a model in training."""
    return any(
        not stage.generates and resolution.trained_models.intersection(resolution.engines_of(stage))
        for stage in resolution.stages.values()
        if placed[stage.name] == group
    )


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
    """Whether every row is on the right worker already. A consumer that scatters rows has those of one producer."""
    same_layout = producer.group == consumer.group and producer.mesh.lays_rows_like(consumer.mesh)
    in_place = producer.mesh.dp == 1 or producer.scatters_rows == consumer.scatters_rows
    return same_layout and in_place and producer.balance == consumer.balance == "None"


def _kind(resolution: Resolution, stage: ResolvedStage) -> EngineKind | None:
    if not resolution.engines_of(stage):
        return None
    return "Rollout" if stage.generates else "Train"
