"""Weight sync: one rank's part in it, over all edges of weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rljob_api.memory.weight_slices import WeightSlices
from rljob_api.planning.plan import Plan, WeightTransport
from rljob_api.planning.weights.flows import WeightFlow, weight_flows
from rljob_api.planning.weights.staging import stages_on_device
from rljob_api.v1alpha1 import WeightDeltaSpec
from rljob_worker.engines.protocols import TrainEngine
from rljob_worker.engines.rollout.protocol import RolloutEngine
from rljob_worker.metrics.scalars import Scalars, mean, merge_all
from rljob_worker.weights.buffers import BufferSource
from rljob_worker.weights.chunks import Received, unpack_tensors
from rljob_worker.weights.delta import DeltaLoader, DeltaSender
from rljob_worker.weights.endpoints import (
    GatherEndpoint,
    InProcessEndpoint,
    Receiver,
    Sender,
    SliceLoader,
    SourceEndpoint,
    TargetEndpoint,
    WeightsEndpoint,
)
from rljob_worker.weights.slices import kept_by
from rljob_worker.weights.staging import StagingTarget

if TYPE_CHECKING:
    import torch


class Transport(Protocol):
    """A way between worker groups."""

    def sender(self, flow: WeightFlow, rank: int) -> Sender: ...

    def receiver(self, flow: WeightFlow, group: str, rank: int) -> Receiver: ...


KeptPart = Callable[[str, int, int], Iterable[Received]]
"""The chunks that a source sends again of what an earlier attempt kept: by model, its number, number of sources."""


@dataclass(frozen=True, slots=True)
class HeldVersion:
    """One source's part of a version in the store of its host."""

    model: str
    version: int
    source: int
    chunks: Sequence[Received]


@dataclass(frozen=True)
class WeightSync:
    """After `sync(version)` this rank's rollout engines hold that version."""

    endpoints: Sequence[WeightsEndpoint]

    def open(self, meeting: str) -> None:
        """Before the first version. Collective over all ranks of edges that go by broadcasts."""
        for endpoint in self.endpoints:
            endpoint.open(meeting)

    def sync(self, version: int, keep: Collection[int] = ()) -> Scalars:
        """Send, receive or copy every policy's weights as `version`, which is newer than the one before. keep: versions
        before it that may still be asked for."""
        started = time.perf_counter()
        done = merge_all([endpoint.sync(version, keep) for endpoint in self.endpoints])
        return done | {"time/weight_sync_seconds": mean(time.perf_counter() - started)}

    def pin(self, versions: Iterable[int]) -> list[HeldVersion]:
        """What the store of this host has of versions that the last `sync` kept, of what this rank has sent. It stays
        where it is until `unpin`."""
        return [
            HeldVersion(source.model, version, source.number, sender.pin(version))
            for version in versions
            for source, sender in self._stores()
        ]

    def unpin(self) -> None:
        """Let go of it, unless generators may still ask for it. Any thread may call this."""
        for _, sender in self._stores():
            sender.unpin()

    def _stores(self) -> Iterator[tuple[SourceEndpoint, BufferSource]]:
        for endpoint in self.endpoints:
            if isinstance(endpoint, SourceEndpoint) and isinstance(endpoint.sender, BufferSource):
                yield endpoint, endpoint.sender

    def send_again(self, version: int, keep: Collection[int], part: KeptPart) -> None:
        """Send a version of an earlier attempt."""
        for endpoint in self.endpoints:
            if isinstance(endpoint, SourceEndpoint):
                chunks = part(endpoint.model, endpoint.number, len(endpoint.sources))
                endpoint.send_again(version, keep, unpack_tensors(chunks))

    def stage(self, version: int) -> None:
        """Begin to take a version that the next `sync` or `pass_over` is of, where this rank has memory for it; the
        engine may decode meanwhile."""
        for endpoint in self.endpoints:
            if isinstance(endpoint, StagingTarget):
                endpoint.stage(version)

    def pass_over(self, version: int) -> None:
        """Wait for a version that is sent, and take nothing of it."""
        for endpoint in self.endpoints:
            if isinstance(endpoint, TargetEndpoint | StagingTarget):
                endpoint.pass_over(version)

    def close(self) -> None:
        """After the last version."""
        for endpoint in self.endpoints:
            endpoint.close()


def build_weight_sync(
    plan: Plan,
    group: str,
    rank: int,
    transports: Mapping[WeightTransport, Transport],
    train_engines: Mapping[str, TrainEngine],
    rollout_engines: Mapping[str, RolloutEngine],
    slices: Mapping[str, WeightSlices],
    device: torch.device,
) -> WeightSync:
    """The endpoints of one rank, in the order of the plan's edges. slices: of every model that is sent or copied.
    device: of the engines."""
    endpoints = list[WeightsEndpoint](_in_process(plan, group, rank, train_engines, rollout_engines, slices))
    delta = plan.spec.weight_sync.delta
    for flow in weight_flows(plan):
        transport = transports[flow.transport]
        if flow.source.name == group:
            train, parts = train_engines[flow.model], slices[flow.model]
            endpoints.append(_training_endpoint(train, flow, rank, transport, delta, parts))
        elif any(target.name == group for target in flow.targets):
            engine = SliceLoader(rollout_engines[flow.model])
            receiver, keeps = transport.receiver(flow, group, rank), kept_by(rank % flow.tensor)
            if stages_on_device(plan, group):
                endpoints.append(StagingTarget(engine, receiver, keeps, device))
            else:
                endpoints.append(TargetEndpoint(DeltaLoader(engine) if delta else engine, receiver, keeps))
    return WeightSync(endpoints)


def _training_endpoint(
    train: TrainEngine,
    flow: WeightFlow,
    rank: int,
    transport: Transport,
    delta: WeightDeltaSpec | None,
    slices: WeightSlices,
) -> WeightsEndpoint:
    if rank not in flow.source_ranks:
        return GatherEndpoint(train, flow.source_ranks)
    sender = transport.sender(flow, rank)
    sender = DeltaSender(sender, delta.full_every) if delta else sender
    return SourceEndpoint(train, flow.source_ranks, sender, flow.model, flow.source_ranks.index(rank), slices)


def _in_process(
    plan: Plan,
    group: str,
    rank: int,
    train_engines: Mapping[str, TrainEngine],
    rollout_engines: Mapping[str, RolloutEngine],
    slices: Mapping[str, WeightSlices],
) -> Iterator[InProcessEndpoint]:
    for edge in plan.weights:
        if edge.transport == "InProcess" and plan.engine(edge.source).group == group:
            parts = slices[edge.model]
            engines = train_engines[edge.model], rollout_engines[edge.model]
            yield InProcessEndpoint(*engines, parts, rank % parts.tensor)
