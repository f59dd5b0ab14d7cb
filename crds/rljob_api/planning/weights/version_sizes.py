"""Bytes of the versions of a policy that exist at once with `rollout.maxStaleness`: in checkpoints and in the store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rljob_api.memory.model_shape import Shapes
from rljob_api.memory.sizes import NUMBER_BYTES
from rljob_api.planning.plan import Plan
from rljob_api.planning.weights.flows import WeightFlow, buffered_flows, store_bytes, store_room


@dataclass(frozen=True, slots=True)
class GuestVersions:
    """GUEST_VERSIONS versions of one policy on a pod of an elastic group, in bytes."""

    group: str
    stored_bytes: int | None
    """None where the shape of the model is not at hand."""
    room: int
    """What the weights' slots have there."""


@dataclass(frozen=True, slots=True)
class VersionSizes:
    """The versions of one policy, in bytes; None where the shape of its model is not at hand."""

    model: str
    model_bytes: int | None
    """One version, in the precision of the job."""
    num_kept: int
    """Versions that a checkpoint has besides the weights in training."""
    num_stored: int
    """Versions that the store of a host has room for."""
    group: str
    """Where that store is: the group that trains the policy."""
    stored_bytes: int | None
    """What they take on the host that has most sources."""
    room: int
    """What the weights' slots have there."""
    guests: GuestVersions | None = None
    """In a job with an elastic group."""

    @property
    def kept_bytes(self) -> int | None:
        """What a checkpoint has besides the weights in training."""
        return None if self.model_bytes is None else self.num_kept * self.model_bytes


def version_sizes(plan: Plan, shapes: Shapes) -> Iterator[VersionSizes]:
    """Every policy whose versions are kept; none with a staleness of 0. shapes: of the models at hand, by path."""
    if not plan.staleness:
        return
    keeps = plan.spec.checkpoint.versions == "Keep"
    for flow in buffered_flows(plan):
        size = flow_bytes(plan, flow, shapes)
        yield VersionSizes(
            model=flow.model,
            model_bytes=size,
            num_kept=plan.staleness if keeps else 0,
            num_stored=plan.num_versions,
            group=flow.source.name,
            stored_bytes=None if size is None else store_bytes(plan, flow, flow.source.name, size),
            room=store_room(plan, flow, flow.source.name),
            guests=_of_guests(plan, flow, size),
        )


def _of_guests(plan: Plan, flow: WeightFlow, model_bytes: int | None) -> GuestVersions | None:
    group = plan.elastic_group
    if group is None or group not in flow.targets:
        return None
    stored = None if model_bytes is None else store_bytes(plan, flow, group.name, model_bytes)
    return GuestVersions(group.name, stored, store_room(plan, flow, group.name))


def flow_bytes(plan: Plan, flow: WeightFlow, shapes: Shapes) -> int | None:
    """Bytes of one version of a model as it is sent; None without its shape."""
    path = next(plan.engine(edge.source).path for edge in plan.weights if edge.name == flow.name)
    return shapes[path].parameters * NUMBER_BYTES[plan.precision] if path in shapes else None
