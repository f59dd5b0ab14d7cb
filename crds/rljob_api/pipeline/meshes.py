"""`Mesh`, and the one place where meshes are made."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rljob_api.v1alpha1 import RLJobSpec
from rljob_api.vocabulary.model import ApiModel, Items

EngineKind = Literal["Train", "Rollout"]
ContextWay = Literal["Heads", "Ring"]
"""What ranks that share sequences do in attention: each has some of the heads of whole rows, or keys and values go
round."""


class Mesh(ApiModel):
    """How the workers of a group divide one engine's work.

    Ranks are numbered with `dp` slowest: `dp=2 tp=2` puts ranks 0 and 1 on the first half of the rows and
    ranks 2 and 3 on the second. `ep` reuses ranks of the other axes and does not add to the size, and neither does
    `rp`, which divides `dp`: `dp=4 rp=2` has the weights once on ranks 0 and 1, and once more on ranks 2 and 3.
    """

    dp: int = Field(default=1, ge=1)
    """Data parallel: rows are divided."""
    tp: int = Field(default=1, ge=1)
    """Tensor parallel: layers are divided."""
    pp: int = Field(default=1, ge=1)
    """Pipeline parallel: depth is divided."""
    cp: int = Field(default=1, ge=1)
    """Context parallel: sequences are divided."""
    ep: int = Field(default=1, ge=1)
    """Expert parallel: experts are divided."""
    rp: int = Field(default=1, ge=1)
    """Replicas: nothing is divided, each run of neighbours shares out weights of its own."""

    @property
    def ranks_per_copy(self) -> int:
        """Ranks that work on the same rows."""
        return self.tp * self.pp * self.cp

    @property
    def ranks_per_replica(self) -> int:
        """Ranks that have all weights together."""
        return self.size // self.rp

    @property
    def ranks_per_experts(self) -> int:
        """Neighbours among whom all lie that share the experts of a layer: those of other copies have theirs behind the
        other stages."""
        return self.ep if self.tp * self.cp % self.ep == 0 else self.ep * self.pp

    @property
    def shards(self) -> int:
        """Ranks that would have the same weights, and share them out."""
        return self.dp // self.rp * self.cp

    @property
    def size(self) -> int:
        """Ranks of the mesh."""
        return self.dp * self.ranks_per_copy

    def dp_rank(self, rank: int) -> int:
        """The data-parallel coordinate of a group-local rank."""
        return rank // self.ranks_per_copy

    def is_row_leader(self, rank: int) -> bool:
        """Whether `rank` is the one of its data-parallel coordinate that puts rows."""
        return rank % self.ranks_per_copy == 0

    def lays_rows_like(self, other: Mesh) -> bool:
        """Whether the same ranks work on the same rows in both."""
        return (self.dp, self.ranks_per_copy) == (other.dp, other.ranks_per_copy)


AxisWithCost = Literal["dp", "rp", "pp", "cp", "tp", "ep"]


class AxisCost(ApiModel):
    """What one axis of a mesh costs a worker, and what it gives, with rows that are all at their longest."""

    axis: AxisWithCost
    way: ContextWay | None = None
    """How `cp` splits a context; None for every other axis."""
    crosses_hosts: bool
    """Whether some of its ranks meet over the network."""
    sent: int
    """Bytes that a worker sends over it in a step."""
    without: int | None = None
    """Bytes of memory that a worker would take at most to train, if its ranks had rows of their own, or of `rp` if all
    shared out the same weights; None of `dp`."""
    waits: float | None = None
    """For `pp`: how long a worker waits for other stages, as a part of the time in which it computes."""


class MeshCost(ApiModel):
    """Cost of the mesh that engines of one group have in common."""

    group: str
    mesh: Mesh
    operations: float
    """Floating-point operations of a worker in a step, with rows that are all at their longest."""
    axes: Items[AxisCost]


def context_way(key_heads: int, mesh: Mesh) -> ContextWay:
    """How ranks of a model with `key_heads` key heads share a context: in a ring where they cannot share the heads that
    the tensor-parallel group leaves each of them in whole heads."""
    return "Ring" if key_heads // mesh.tp % mesh.cp else "Heads"


def num_workers_of(spec: RLJobSpec, group: str) -> int:
    """Workers of a group."""
    return next(g.replicas * g.accelerator.count for g in spec.worker_groups if g.name == group)


def ranks_per_copy(spec: RLJobSpec, kind: EngineKind | None) -> tuple[int, int, int]:
    """(tensor, context, pipeline) parallel degrees of an engine of this kind; 1 for a stage without an engine."""
    if kind == "Train":
        parallelism = spec.training.parallelism
        return parallelism.tensor, parallelism.context, parallelism.pipeline
    return (spec.rollout.parallelism.tensor, 1, 1) if kind == "Rollout" else (1, 1, 1)


def expert_ranks(spec: RLJobSpec, kind: EngineKind | None) -> int:
    """Ranks that share the experts of a layer in an engine of this kind."""
    return spec.training.parallelism.expert if kind == "Train" else 1


def ranks_beside_experts(num_workers: int, replicas: int, pipeline: int) -> int:
    """Those that may share the experts of a layer: of one replica the workers that have the layer."""
    return num_workers // replicas // pipeline


def num_replicas(spec: RLJobSpec, kind: EngineKind | None) -> int:
    """How often an engine of this kind has its weights in a group."""
    return spec.training.parallelism.replicate if kind == "Train" else 1


def mesh_of(spec: RLJobSpec, group: str, kind: EngineKind | None) -> Mesh:
    """The mesh of an engine of this kind in `group`; what parallelism leaves over is data parallel."""
    tensor, context, pipeline = ranks_per_copy(spec, kind)
    dp, left = divmod(num_workers_of(spec, group), tensor * context * pipeline)
    assert left == 0, f"{group} has no whole number of copies"
    replicas = num_replicas(spec, kind)
    assert dp % replicas == 0, f"the copies of {group} make no {replicas} replicas"
    return Mesh(dp=dp, tp=tensor, cp=context, pp=pipeline, ep=expert_ranks(spec, kind), rp=replicas)
