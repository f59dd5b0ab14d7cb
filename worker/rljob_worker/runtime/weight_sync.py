"""Policy weights from the engine that trains them to those that sample: in-process or through the data buffers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Literal, Protocol

from rljob_api.planning.plan import Plan, WeightEdge
from rljob_api.planning.weights import weight_flows
from rljob_worker.engines.protocols import TrainEngine
from rljob_worker.engines.rollout.protocol import RolloutEngine
from rljob_worker.runtime.weight_chunks import Received, Slots, read_tensors, write_tensors
from rljob_worker.scalars import Scalars, mean

Role = Literal["local", "source", "target"]


class Buffer(Protocol):
    """The part of the data buffer client that weights use."""

    def sending(self, version: int, edge: str) -> AbstractContextManager[Slots]: ...

    def receive(self, version: int, edge: str) -> Iterator[Received]: ...


class WeightSync:
    """One rank's part of every weight edge. After `sync(version)` this rank's rollout engines hold that version."""

    def __init__(
        self,
        plan: Plan,
        group: str,
        rank: int,
        buffer: Buffer,
        train_engines: Mapping[str, TrainEngine],
        rollout_engines: Mapping[str, RolloutEngine],
    ) -> None:
        self._buffer = buffer
        self._rank = rank
        self._train = train_engines
        self._rollout = rollout_engines
        self._sources = {flow.name: flow.source_ranks for flow in weight_flows(plan)}
        roles = ((edge, _role(plan, edge, group)) for edge in plan.weights)
        # edges of one name, to several groups, are sent once
        self._edges = {(edge.name, role): edge for edge, role in roles if role is not None}

    def sync(self, version: int) -> Scalars:
        """Send, receive or copy every policy's weights as `version`."""
        started = time.perf_counter()
        for (name, role), edge in self._edges.items():
            if role == "local":
                self._rollout[edge.model].load_weights(self._train[edge.model].weights(), version)
            elif role == "source":
                self._send(edge, version)
            else:
                tensors = read_tensors(self._buffer.receive(version, name))
                self._rollout[edge.model].load_weights(tensors, version)
        return {"time/weight_sync_seconds": mean(time.perf_counter() - started)}

    def _send(self, edge: WeightEdge, version: int) -> None:
        """Gathering is collective: ranks that are no source go through it as well, and get nothing."""
        sources = self._sources[edge.name]
        tensors = self._train[edge.model].weights(sources=sources)
        if self._rank not in sources:
            for _ in tensors:
                pass
            return
        with self._buffer.sending(version, edge.name) as slots:
            write_tensors(slots, tensors)


def _role(plan: Plan, edge: WeightEdge, group: str) -> Role | None:
    if plan.engine(edge.source).group == group:
        return "local" if edge.transport == "Local" else "source"
    return "target" if plan.engine(edge.target).group == group and edge.transport == "Buffer" else None
