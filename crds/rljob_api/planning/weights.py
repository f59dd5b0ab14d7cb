"""Weights that go through the data buffers: which ranks send them, and the memory that data buffers keep for them.

Every host that takes part keeps WINDOW slots for each source whose chunks pass through it: a fixed set per source, so
that the chunks of one source never wait for room that those of another hold.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rljob_api.planning.plan import GroupPlan, Plan
from rljob_api.vocabulary.arena import weights_share
from rljob_api.vocabulary.quantity import parse_quantity

MAX_SOURCES = 16
"""Most ranks that send one model."""

WINDOW = 4
"""Slots per source on a host: one that fills while two children and the ranks read others at their own pace."""

MAX_SLOT_BYTES = 16 << 20
"""A larger chunk saves nothing any more, and delays whoever is further down the tree."""

MIN_SLOT_BYTES = 64 << 10
"""A smaller chunk costs more messages than it moves bytes."""


@dataclass(frozen=True, slots=True)
class WeightFlow:
    """All edges of one name that go through the data buffers: a model from its trainer to all who sample with it."""

    name: str
    source: GroupPlan
    targets: tuple[GroupPlan, ...]

    @property
    def source_ranks(self) -> tuple[int, ...]:
        """Ranks of the training group that send, spread evenly over its hosts."""
        workers = self.source.num_workers
        num_sources = min(workers, MAX_SOURCES)
        return tuple(i * workers // num_sources for i in range(num_sources))


def weight_flows(plan: Plan) -> list[WeightFlow]:
    """One for each name, in the order of the plan."""
    edges = [edge for edge in plan.weights if edge.transport == "Buffer"]
    flows = []
    for name in dict.fromkeys(edge.name for edge in edges):
        mine = [edge for edge in edges if edge.name == name]
        targets = dict.fromkeys(plan.engine(edge.target).group for edge in mine)
        source = plan.engine(mine[0].source).group
        flows.append(WeightFlow(name, plan.group(source), tuple(plan.group(target) for target in targets)))
    return flows


def num_slots(plan: Plan, group: str) -> int:
    """Slots for weights in the data buffer of the host of a group that has most."""
    return WINDOW * sum(_sources_through(flow, group) for flow in weight_flows(plan))


def slot_bytes(plan: Plan) -> int | None:
    """Room of a chunk, the same on every host, within the weights' share of the arena. None: it is too small."""
    slots = _most_slots(plan)
    room = weights_share(parse_quantity(plan.spec.data_buffer.memory))
    size = MAX_SLOT_BYTES
    while size >= MIN_SLOT_BYTES:
        if slots * size <= room:
            return size
        size //= 2
    return None


def least_memory(plan: Plan) -> int:
    """The smallest dataBuffer.memory with which the weights can go."""
    return 2 * _most_slots(plan) * MIN_SLOT_BYTES


def _most_slots(plan: Plan) -> int:
    return max(num_slots(plan, group.name) for group in plan.groups)


def _sources_through(flow: WeightFlow, group: str) -> int:
    if any(target.name == group for target in flow.targets):
        return len(flow.source_ranks)
    if flow.source.name == group:
        return max(Counter(rank // flow.source.workers_per_host for rank in flow.source_ranks).values())
    return 0
