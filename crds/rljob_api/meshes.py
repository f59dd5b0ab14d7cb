"""The one place where meshes are made."""

from __future__ import annotations

from typing import Literal

from rljob_api.plan import Mesh
from rljob_api.v1alpha1 import RLJobSpec

Kind = Literal["Train", "Rollout"]


def num_workers_of(spec: RLJobSpec, group: str) -> int:
    """Workers of a group."""
    return next(g.replicas * g.accelerator.count for g in spec.worker_groups if g.name == group)


def ranks_per_copy(spec: RLJobSpec, kind: Kind | None) -> tuple[int, int]:
    """(tensor, context) parallel degrees of an engine of this kind; (1, 1) for a stage without an engine."""
    if kind == "Train":
        return spec.training.parallelism.tensor, spec.training.parallelism.context
    return (spec.rollout.parallelism.tensor, 1) if kind == "Rollout" else (1, 1)


def mesh_of(spec: RLJobSpec, group: str, kind: Kind | None) -> Mesh:
    """The mesh of an engine of this kind in `group`; what parallelism leaves over is data parallel."""
    tensor, context = ranks_per_copy(spec, kind)
    dp, left = divmod(num_workers_of(spec, group), tensor * context)
    assert left == 0, f"{group} has no whole number of copies"
    return Mesh(dp=dp, tp=tensor, cp=context)
