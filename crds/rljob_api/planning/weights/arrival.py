"""How weights arrive at the groups that generate with them, and for how long nothing is decoded meanwhile. Pure.

    links       what a host takes / (its links x LINK_SHARE); what a host sends, where that takes longer
    cores       what a host takes / (cores x TAKEN_BYTES) and what it hands on / (cores x SENT_BYTES), together
    threads     what a host takes / (STREAM_THREADS x TAKEN_BYTES)
    parent      what it takes from one parent / (its connections to that x TAKEN_BYTES)
    chunks      chunks that it takes x (CHUNK_SECONDS + its workers x READER_SECONDS), of one interpreter
    loading     a worker's slice / its link to the memory of the host, and TENSOR_SECONDS for each tensor

A host takes each byte once, and each of its workers its slice of that; by broadcasts a worker takes its slice itself,
and no processor of its host touches it. A thread, or a connection, keeps one core busy: so many work, however many
there are.

Where versions come ahead of their use (`rollout.maxStaleness`), a worker whose device has room takes its slice while
the version before decodes, and decoding stands still for a copy within the device. Where not the device but the slots
of the host have room for a version, it stands still to load slices from there; else until the last chunk is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Literal

from rljob_api.catalogue.profiles import AcceleratorProfile, AcceleratorSpeed
from rljob_api.memory.model_shape import Shapes
from rljob_api.memory.sizes import NUMBER_BYTES
from rljob_api.memory.weight_slices import slice_parameters
from rljob_api.planning.plan import GroupPlan, Plan
from rljob_api.planning.weights.flows import (
    MIN_SLOT_BYTES,
    WINDOW,
    WeightFlow,
    slot_bytes,
    slots_per_source,
    weight_flows,
)
from rljob_api.planning.weights.staging import stages_on_device
from rljob_api.planning.weights.trees import FAN_OUT, STREAM_THREADS, TreeLoad, stream_connections, tree_load
from rljob_api.vocabulary import keys
from rljob_api.vocabulary.quantity import amount

LINK_SHARE = 0.6
"""Part of a link that weights have at least (docs/benchmarks.md, Weights: 0.85 from eight sources)."""
TAKEN_BYTES, SENT_BYTES = 1.2e9, 2.4e9
"""What a core of a data buffer takes from others, and what it gives to them, in a second (docs/weight-arrival.md)."""
CHUNK_SECONDS, READER_SECONDS = 1.3e-3, 6.5e-5
"""Time of a data buffer's interpreter for each chunk that it takes, and for each worker that it hands it to."""
TENSOR_SECONDS = 2e-5
"""Time of a worker's interpreter for each tensor that it copies into an engine on a device."""

Staged = Literal["Host", "Device"]
Bound = Literal["links", "cores", "threads", "parent", "chunks", "loading"]


@dataclass(frozen=True, slots=True)
class WeightArrival:
    """One version of a model on its way into the workers of one group."""

    name: str
    group: str
    worker_bytes: int
    """What goes into the worker that takes most: its slice."""
    host_bytes: int
    """What its host takes over the network."""
    seconds: Mapping[Bound, float]
    """By what bounds it; empty on CPUs, whose links no profile knows."""
    staged: Staged | None
    """Where all of it is before decoding stops; None: nowhere."""
    switch_seconds: float | None
    """A copy of the slice within the device; None on CPUs."""

    @property
    def network_seconds(self) -> float | None:
        """Until a host has it."""
        return max((self.seconds[item] for item in self.seconds if item != "loading"), default=None)

    @property
    def loading_seconds(self) -> float | None:
        """From the host into the worker."""
        return self.seconds.get("loading")

    @property
    def bound(self) -> Bound | None:
        """What takes longest of the way of a version."""
        return max(self.seconds, key=self.seconds.__getitem__, default=None)

    @property
    def pause_seconds(self) -> float | None:
        """For how long nothing is decoded: chunks are loaded as they come."""
        if self.network_seconds is None or self.loading_seconds is None:
            return None
        if self.staged is None:
            return max(self.network_seconds, self.loading_seconds)
        return self.switch_seconds if self.staged == "Device" else self.loading_seconds


def weight_arrivals(plan: Plan, shapes: Shapes, profiles: Mapping[str, AcceleratorProfile]) -> Iterator[WeightArrival]:
    """One for each model and group that generates with it, of models whose shape is at hand."""
    for flow in weight_flows(plan):
        path = next(plan.engine(edge.source).path for edge in plan.weights if edge.name == flow.name)
        if path in shapes:
            width = NUMBER_BYTES[plan.precision]
            whole = shapes[path].parameters * width
            kept = slice_parameters(shapes[path], flow.tensor) * width
            model = _Sent(whole, kept, shapes[path].num_tensors * TENSOR_SECONDS)
            yield from (_arrival(plan, flow, target, model, profiles) for target in flow.targets)


@dataclass(frozen=True, slots=True)
class _Sent:
    """A model: bytes of all of it, bytes that a worker keeps of it, and seconds to give an engine its tensors."""

    whole: int
    kept: int
    giving: float


def _arrival(
    plan: Plan,
    flow: WeightFlow,
    target: GroupPlan,
    model: _Sent,
    profiles: Mapping[str, AcceleratorProfile],
) -> WeightArrival:
    by_broadcasts, whole, kept = flow.transport == "Collective", model.whole, model.kept
    host_bytes = kept * target.workers_per_host if by_broadcasts else whole
    taken_at, sent_at = _speed(target, profiles), _speed(flow.source, profiles)
    seconds, switch = dict[Bound, float](), None
    if taken_at is not None and sent_at is not None:
        sent = whole * flow.most_sources(flow.source.name) / len(flow.source_ranks)
        sending = sent / (sent_at.network * flow.source.workers_per_host * LINK_SHARE)
        seconds["links"] = max(host_bytes / (taken_at.network * target.workers_per_host * LINK_SHARE), sending)
        if not by_broadcasts:
            load, cores = _tree_load(flow, target), buffer_cores(plan, target, taken_at)
            sending = sent / (SENT_BYTES * buffer_cores(plan, flow.source, sent_at))
            seconds["cores"] = max(core_seconds(flow, load, whole, cores), sending)
            seconds["threads"] = whole / (STREAM_THREADS * TAKEN_BYTES)
            # a data buffer counts the processors of its host, whatever its container is limited to
            seconds["parent"] = parent_seconds(flow, load, whole, taken_at.cores * target.workers_per_host)
            num_chunks = ceil(whole / (slot_bytes(plan) or MIN_SLOT_BYTES))
            seconds["chunks"] = num_chunks * (CHUNK_SECONDS + READER_SECONDS * target.workers_per_host)
        seconds["loading"] = kept / taken_at.host + model.giving
        switch = 2 * kept / taken_at.device_memory + model.giving  # read once, written once
    on_host: Staged | None = "Host" if _holds_version(plan, flow, target, whole) else None
    staged = "Device" if stages_on_device(plan, target.name) else on_host
    return WeightArrival(flow.name, target.name, kept, host_bytes, seconds, staged, switch)


def core_seconds(flow: WeightFlow, load: TreeLoad, whole: int, cores: float) -> float:
    """Seconds in which all cores take a model of `whole` bytes and hand on what others take of it."""
    handed_on = whole * load.handed_on / len(flow.source_ranks)
    return (whole / TAKEN_BYTES + handed_on / SENT_BYTES) / cores


def parent_seconds(flow: WeightFlow, load: TreeLoad, whole: int, cores: float) -> float:
    """Seconds of what comes from one parent over the connections to it, as many as there are chunks on their way."""
    of_one_parent = whole * load.of_one_parent / len(flow.source_ranks)
    return of_one_parent / (min(stream_connections(int(cores)), WINDOW * load.of_one_parent) * TAKEN_BYTES)


def _tree_load(flow: WeightFlow, target: GroupPlan) -> TreeLoad:
    """A pod of an elastic group has one parent for all sources, and children that have no other."""
    num_sources = len(flow.source_ranks)
    if target.elastic is not None:
        return TreeLoad(FAN_OUT * num_sources, num_sources)
    hosts = [rank // flow.source.workers_per_host for rank in flow.source_ranks]
    return tree_load(hosts, sum(item.replicas for item in flow.targets if item.elastic is None))


def buffer_cores(plan: Plan, group: GroupPlan, speed: AcceleratorSpeed) -> float:
    """Cores that the data buffer of a host may use: of its accelerators' one less for each worker, at least one, and no
    more than the pod template limits its container to."""
    cores = max(1.0, (speed.cores - 1) * group.workers_per_host)
    template = next(item.template for item in plan.spec.worker_groups if item.name == group.name)
    pod = template.get("spec") or {}
    for container in (*(pod.get("initContainers") or ()), *(pod.get("containers") or ())):
        limit = ((container.get("resources") or {}).get("limits") or {}).get("cpu")
        if container.get("name") == keys.CONTAINER_BUFFER and limit is not None and amount(limit) > 0:
            cores = min(cores, float(amount(limit)))
    return cores


def _speed(group: GroupPlan, profiles: Mapping[str, AcceleratorProfile]) -> AcceleratorSpeed | None:
    return None if group.device == "cpu" or group.profile not in profiles else profiles[group.profile].speed


def _holds_version(plan: Plan, flow: WeightFlow, target: GroupPlan, whole: int) -> bool:
    """Whether the slots of a host have room for the next version while the ranks generate with one that they have."""
    slots = slots_per_source(plan, target.name) * len(flow.source_ranks)
    return plan.num_versions > 1 and whole <= slots * (slot_bytes(plan) or 0)
