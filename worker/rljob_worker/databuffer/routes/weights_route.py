"""The way of weights: every source is the root of a tree of its own over the hosts that receive. Pure.

    source 0 ─▶ A ─┬▶ B ─┬▶ D      source 1 ─▶ C ─┬▶ D ─┬▶ A      …
                   └▶ C  └▶ E                     └▶ E  └▶ B

A source's host has one child, the others have two: a source sends its part once, and targets pass it on. The trees are
rotated against each other, so that who passes on much of one source passes on little of another, and the links of all
hosts carry about the same.

A host keeps slots for each source whose chunks pass through it, and no chunk ever lies in another source's slot. So a
tree waits only for its own hosts further down and for their ranks, which take chunks of all sources as they come: what
waits for what has no circle, though A is above B in one tree and below it in another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rljob_api.planning.plan import GroupPlan, Plan
from rljob_api.planning.weights.flows import (
    WINDOW,
    WeightFlow,
    buffered_flows,
    least_memory,
    slot_bytes,
    slots_per_source,
)
from rljob_api.planning.weights.trees import child_places, parent_place, rotation
from rljob_api.vocabulary.quantity import format_bytes
from rljob_worker.databuffer.protocol.worker_answers import WeightsOfWorker
from rljob_worker.databuffer.routes.hosts import Host, WorkerId
from rljob_worker.errors import InvalidJob


@dataclass(frozen=True, slots=True)
class SourceRank:
    """A rank that sends its part of a model."""

    number: int
    worker: WorkerId
    host: Host


@dataclass(frozen=True, slots=True)
class WeightsRoute:
    """One model from the ranks that train it to every rank that samples with it."""

    name: str
    sources: tuple[SourceRank, ...]
    targets: tuple[GroupPlan, ...] = field(repr=False)
    slot_bytes: int
    num_versions: int = 1
    """That exist at once, of the plan."""
    slots: Mapping[str, int] = field(default_factory=dict, repr=False)
    """For each source on the hosts of a group, by its name, where that is not WINDOW."""
    guests: GroupPlan | None = field(default=None, repr=False)
    """An elastic group that receives, too, outside of the trees: each of its hosts asks for the versions it needs."""

    @staticmethod
    def of(flow: WeightFlow, slot_bytes: int, slots: Mapping[str, int] | None = None) -> WeightsRoute:
        group = flow.source
        sources = tuple(
            SourceRank(number, WorkerId(group.name, rank), Host(group.name, rank // group.workers_per_host))
            for number, rank in enumerate(flow.source_ranks)
        )
        gang = tuple(target for target in flow.targets if target.elastic is None)
        guests = next((target for target in flow.targets if target.elastic is not None), None)
        return WeightsRoute(flow.name, sources, gang, slot_bytes, flow.num_versions, slots or {}, guests)

    def num_slots(self, host: Host) -> int:
        """Number of slots for each source whose chunks pass through the host."""
        return self.slots.get(host.group, WINDOW)

    @property
    def num_targets(self) -> int:
        """Hosts that receive."""
        return sum(group.replicas for group in self.targets)

    def source_of(self, worker: WorkerId) -> SourceRank | None:
        return next((source for source in self.sources if source.worker == worker), None)

    def readers(self, host: Host) -> list[int]:
        """Ranks of the host that receive."""
        for group in (*self.targets, *([self.guests] if self.guests else [])):
            if group.name == host.group:
                first = host.index * group.workers_per_host
                return list(range(first, first + group.workers_per_host))
        return []

    def sources_through(self, host: Host) -> list[SourceRank]:
        """Those whose chunks pass through the host."""
        if self._ordinal(host) is not None or self.is_guest(host):
            return list(self.sources)
        return [source for source in self.sources if source.host == host]

    def is_guest(self, host: Host) -> bool:
        """Whether a host asks for versions, and is in no tree."""
        return self.guests is not None and self.guests.name == host.group

    def parent(self, source: SourceRank, host: Host) -> Host | None:
        """Who gives the source's chunks to a host that receives; None for the source's own host."""
        ordinal = self._ordinal(host)
        if ordinal is None:
            return None
        place = parent_place(self._place(source, ordinal))
        return source.host if place is None else self._at(source, place)

    def children(self, source: SourceRank, host: Host) -> list[Host]:
        """Whom a host gives the source's chunks to."""
        ordinal = self._ordinal(host)
        if ordinal is None:
            return [self._at(source, 0)] if self.num_targets else []
        places = child_places(self._place(source, ordinal), self.num_targets)
        return [self._at(source, child) for child in places]

    def _place(self, source: SourceRank, ordinal: int) -> int:
        """Place of a target in the source's tree."""
        return (ordinal - self._rotation(source)) % self.num_targets

    def _rotation(self, source: SourceRank) -> int:
        return rotation(source.number, len(self.sources), self.num_targets)

    def _at(self, source: SourceRank, place: int) -> Host:
        """The host at a place of the source's tree."""
        ordinal = (place + self._rotation(source)) % self.num_targets
        for group in self.targets:
            if ordinal < group.replicas:
                return Host(group.name, ordinal)
            ordinal -= group.replicas
        raise AssertionError(f"{self.name} has no target {ordinal}")

    def _ordinal(self, host: Host) -> int | None:
        before = 0
        for group in self.targets:
            if group.name == host.group:
                return before + host.index
            before += group.replicas
        return None


@dataclass(frozen=True, slots=True)
class WeightsRoutes:
    """All weights of a plan that go through data buffers, by the name of their edge."""

    by_edge: dict[str, WeightsRoute]

    @staticmethod
    def of(plan: Plan) -> WeightsRoutes:
        """Raises InvalidJob when dataBuffer.memory has no room for their slots."""
        flows = buffered_flows(plan)
        size = slot_bytes(plan)
        if size is None:
            raise InvalidJob(
                f"dataBuffer.memory is {plan.spec.data_buffer.memory}, too small for weights to pass through: write at "
                f"least {format_bytes(least_memory(plan))}"
            )
        slots = {group.name: slots_per_source(plan, group.name) for group in plan.groups}
        return WeightsRoutes({flow.name: WeightsRoute.of(flow, size, slots) for flow in flows})

    def of_worker(self, worker: WorkerId, host: Host) -> dict[str, WeightsOfWorker]:
        """What a worker must know of its ends, by edge; edges that it has no end of are left out."""
        ends = {}
        for name, route in self.by_edge.items():
            source, receives = route.source_of(worker), worker.rank in route.readers(host)
            if source is not None or receives:
                number = None if source is None else source.number
                ends[name] = WeightsOfWorker(source=number, receives=receives, slot_bytes=route.slot_bytes)
        return ends

    def slots(self, host: Host, start: int = 0) -> dict[tuple[str, int], list[int]]:
        """Offsets of the slots of a host by (edge, source), laid side by side from byte `start` of its arena."""
        result: dict[tuple[str, int], list[int]] = {}
        offset = start
        for name, route in self.by_edge.items():
            num_bytes = route.num_slots(host) * route.slot_bytes
            for source in route.sources_through(host):
                result[name, source.number] = list(range(offset, offset + num_bytes, route.slot_bytes))
                offset += num_bytes
        return result

    def num_bytes(self, host: Host) -> int:
        """What the slots of a host take of its arena."""
        return sum(
            route.num_slots(host) * route.slot_bytes * len(route.sources_through(host))
            for route in self.by_edge.values()
        )
