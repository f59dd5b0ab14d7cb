"""How weights arrive at the groups that generate with them, and for how long nothing is decoded meanwhile. Pure.

    network   what a host takes / (its links x LINK_SHARE); what a host sends, where that takes longer
    loading   a worker's slice / its link to the memory of the host

A host takes each byte once, and each of its workers its slice of that; by broadcasts a worker takes its slice itself.
Where versions come ahead of their use (`rollout.maxStaleness`) and the slots of a host that generates hold a whole one,
it comes while the one before it decodes: the slices of all its workers are staged there, and decoding stands still to
load them. Otherwise it stands still until the last chunk is there. Time of processors is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rljob_api.catalogue.profiles import AcceleratorProfile, AcceleratorSpeed
from rljob_api.memory.model_shape import Shapes
from rljob_api.memory.sizes import NUMBER_BYTES
from rljob_api.memory.weight_slices import slice_parameters
from rljob_api.planning.plan import GroupPlan, Plan
from rljob_api.planning.weights.flows import WeightFlow, slot_bytes, slots_per_source, weight_flows

LINK_SHARE = 0.6
"""Part of a link that weights have at least (docs/benchmarks.md, Weights: 0.85 from eight sources)."""


@dataclass(frozen=True, slots=True)
class WeightArrival:
    """One version of a model on its way into the workers of one group."""

    name: str
    group: str
    worker_bytes: int
    """What goes into the worker that takes most: its slice."""
    host_bytes: int
    """What its host takes over the network."""
    network_seconds: float | None
    """None on CPUs, whose links no profile knows."""
    loading_seconds: float | None
    is_staged: bool
    """Whether all of it is on the host before decoding stops."""

    @property
    def pause_seconds(self) -> float | None:
        """For how long nothing is decoded: chunks are loaded as they come."""
        if self.network_seconds is None or self.loading_seconds is None:
            return None
        return self.loading_seconds if self.is_staged else max(self.network_seconds, self.loading_seconds)


def weight_arrivals(plan: Plan, shapes: Shapes, profiles: Mapping[str, AcceleratorProfile]) -> Iterator[WeightArrival]:
    """One for each model and group that generates with it, of models whose shape is at hand."""
    for flow in weight_flows(plan):
        path = next(plan.engine(edge.source).path for edge in plan.weights if edge.name == flow.name)
        if path in shapes:
            width = NUMBER_BYTES[plan.precision]
            whole = shapes[path].parameters * width
            kept = slice_parameters(shapes[path], flow.tensor) * width
            yield from (_arrival(plan, flow, target, whole, kept, profiles) for target in flow.targets)


def _arrival(
    plan: Plan,
    flow: WeightFlow,
    target: GroupPlan,
    whole: int,
    kept: int,
    profiles: Mapping[str, AcceleratorProfile],
) -> WeightArrival:
    by_broadcasts = flow.transport == "Collective"
    host_bytes = kept * target.workers_per_host if by_broadcasts else whole
    sent = whole * flow.most_sources(flow.source.name) / len(flow.source_ranks)
    taken_at, sent_at = _speed(target, profiles), _speed(flow.source, profiles)
    network = loading = None
    if taken_at is not None and sent_at is not None:
        sending = sent / (sent_at.network * flow.source.workers_per_host * LINK_SHARE)
        network = max(host_bytes / (taken_at.network * target.workers_per_host * LINK_SHARE), sending)
        loading = kept / taken_at.host
    staged = _holds_version(plan, flow, target, whole)
    return WeightArrival(flow.name, target.name, kept, host_bytes, network, loading, staged)


def _speed(group: GroupPlan, profiles: Mapping[str, AcceleratorProfile]) -> AcceleratorSpeed | None:
    return None if group.device == "cpu" or group.profile not in profiles else profiles[group.profile].speed


def _holds_version(plan: Plan, flow: WeightFlow, target: GroupPlan, whole: int) -> bool:
    """Whether the slots of a host have room for the next version while the ranks generate with one that they have."""
    slots = slots_per_source(plan, target.name) * len(flow.source_ranks)
    return plan.num_versions > 1 and whole <= slots * (slot_bytes(plan) or 0)
