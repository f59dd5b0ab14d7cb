"""How weights go from training to sampling: over which transport, which ranks send, what data buffers keep for them.

A host whose data buffer weights pass through keeps slots for each source whose chunks come by: a fixed set per source,
so that the chunks of one source never wait for room that those of another hold. WINDOW of them are enough to pass
chunks on. A host whose ranks send has as many as the weights' share of the arena holds: there lie the versions that
receivers have still to fetch, while training goes on. With several versions at once so do hosts that receive. Pods of
an elastic group hold whole versions, and give half of the arena for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from rljob_api.memory.sizes import BUCKET_BYTES
from rljob_api.pipeline.buffer_capacity import weights_share
from rljob_api.planning.plan import GroupPlan, Plan, WeightTransport
from rljob_api.v1alpha1 import WeightTransportChoice
from rljob_api.vocabulary.quantity import parse_quantity

MAX_SOURCES: Mapping[WeightTransport, int] = {"DataBuffer": 16, "Collective": 4}
"""Most ranks that send one model. Each that broadcasts costs every rank that receives a communicator."""

WINDOW = 4
"""Least slots per source on a host: one that fills while two children and the ranks read others at their own pace."""

GUEST_VERSIONS = 2
"""Versions that a pod of an elastic group has room for at least: the one that it generates with, which others read from
it, and the one that comes meanwhile."""

MAX_SLOT_BYTES = BUCKET_BYTES
"""Weights go in buckets, so that a larger chunk would not be full. Each costs a data buffer 1.3 ms whatever it holds,
and more for each worker that reads it (docs/weight-arrival.md)."""

BROADCAST_BYTES = 16 << 20
"""A chunk that is broadcast, of which WINDOW lie in the memory of the device."""

MIN_SLOT_BYTES = 64 << 10
"""A smaller chunk costs more messages than it moves bytes."""


@dataclass(frozen=True, slots=True)
class WeightFlow:
    """All edges of one name between worker groups: a model from its trainer to all who sample with it."""

    name: str
    model: str
    transport: WeightTransport
    source: GroupPlan
    targets: tuple[GroupPlan, ...]
    num_versions: int = 1
    """That may exist at once."""
    tensor: int = 1
    """Ranks of a copy that generates: each keeps a slice."""

    @property
    def source_ranks(self) -> tuple[int, ...]:
        """Ranks of the training group that send, spread evenly over its hosts."""
        workers = self.source.num_workers
        num_sources = min(workers, MAX_SOURCES[self.transport])
        return tuple(i * workers // num_sources for i in range(num_sources))

    @property
    def num_receivers(self) -> int:
        """Ranks that receive."""
        return sum(target.num_workers for target in self.targets)

    def receivers_before(self, group: str) -> int:
        """Ranks of the targets in front of one of them."""
        names = [target.name for target in self.targets]
        return sum(target.num_workers for target in self.targets[: names.index(group)])

    def most_sources(self, group: str) -> int:
        """Sources whose chunks pass through the host of a group that has most."""
        if any(target.name == group for target in self.targets):
            return len(self.source_ranks)
        if self.source.name == group:
            return max(Counter(rank // self.source.workers_per_host for rank in self.source_ranks).values())
        return 0


def weight_transport(asked: WeightTransportChoice, *, together: bool) -> WeightTransport:
    """How the weights of one edge go. together: both engines are in the same workers."""
    if together:
        return "InProcess"
    return "Collective" if asked == "Collective" else "DataBuffer"


def weight_flows(plan: Plan) -> list[WeightFlow]:
    """One for each name, in the order of the plan."""
    edges = [edge for edge in plan.weights if edge.transport != "InProcess"]
    flows = []
    for name in dict.fromkeys(edge.name for edge in edges):
        mine = [edge for edge in edges if edge.name == name]
        targets = dict.fromkeys(plan.engine(edge.target).group for edge in mine)
        source = plan.group(plan.engine(mine[0].source).group)
        groups = tuple(plan.group(target) for target in targets)
        tensor = plan.engine(mine[0].target).mesh.tp
        flows.append(WeightFlow(name, mine[0].model, mine[0].transport, source, groups, plan.num_versions, tensor))
    return flows


def buffered_flows(plan: Plan) -> list[WeightFlow]:
    """Those that go through data buffers."""
    return [flow for flow in weight_flows(plan) if flow.transport == "DataBuffer"]


def slots_per_source(plan: Plan, group: str) -> int:
    """Slots of each source whose chunks pass through the hosts of a group."""
    size, num_sources = slot_bytes(plan), _most_sources(plan, group)
    sends = any(flow.source.name == group for flow in buffered_flows(plan))
    if size is None or not num_sources or not (sends or plan.num_versions > 1):
        return WINDOW
    return max(WINDOW, _share(plan, group) // (size * num_sources))


def store_room(plan: Plan, flow: WeightFlow, group: str) -> int:
    """Bytes of the slots of a model on the host of a group that has most of its sources."""
    return flow.most_sources(group) * slots_per_source(plan, group) * (slot_bytes(plan) or 0)


def store_bytes(plan: Plan, flow: WeightFlow, group: str, model_bytes: int) -> int:
    """Bytes that versions of a model take there, in whole slots: all that may exist at once where it is trained, the
    whole of GUEST_VERSIONS on a pod of an elastic group. Sources share a model by buckets, so that one may have a
    bucket more than another, and a small model whole."""
    size = slot_bytes(plan) or MIN_SLOT_BYTES
    num_sources = len(flow.source_ranks)
    part = min(model_bytes, ceil(model_bytes / num_sources) + BUCKET_BYTES)
    num_versions = plan.num_versions if group == flow.source.name else GUEST_VERSIONS
    return flow.most_sources(group) * num_versions * ceil(part / size) * size


def slot_bytes(plan: Plan) -> int | None:
    """Room of a chunk, the same on every host, within the weights' share of the arena. None: it is too small."""
    slots = _least_slots(plan)
    size = MAX_SLOT_BYTES
    while size >= MIN_SLOT_BYTES:
        if slots * size <= _share(plan):
            return size
        size //= 2
    return None


def least_memory(plan: Plan) -> int:
    """The smallest dataBuffer.memory with which the weights can go."""
    return 2 * _least_slots(plan) * MIN_SLOT_BYTES


def _share(plan: Plan, group: str | None = None) -> int:
    """Bytes for weights on the hosts of a group; without one, on any host."""
    elastic = plan.elastic_group is not None and plan.elastic_group.name == group
    return weights_share(parse_quantity(plan.spec.data_buffer.memory), holds_versions=elastic)


def _most_sources(plan: Plan, group: str) -> int:
    return sum(flow.most_sources(group) for flow in buffered_flows(plan))


def _least_slots(plan: Plan) -> int:
    """With several versions a chunk is smaller rather than a small model in need of much memory."""
    return plan.num_versions * WINDOW * max(_most_sources(plan, group.name) for group in plan.groups)
