"""Moving rows between stages: a local edge hands the object on, every other edge goes through the data buffer."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Protocol

from rljob_api.planning.plan import EdgePlan, Plan, StagePlan
from rljob_worker.batch import Batch
from rljob_worker.metrics.scalars import Scalars, mean


class EdgeBuffer(Protocol):
    """The part of the data buffer client that edges use."""

    def put(self, step: int, edge: str, batch: Batch, *, deadline_seconds: float) -> None: ...

    def get(self, step: int, edge: str, *, deadline_seconds: float) -> Batch: ...

    def release(self, batch: Batch) -> None: ...


class Handover:
    """Inputs and outputs of one rank's stages. Holds a local batch only until its last consumer has run."""

    def __init__(self, plan: Plan, group: str, rank: int, buffer: EdgeBuffer, deadline_seconds: float) -> None:
        self._buffer = buffer
        self._rank = rank
        self._deadline_seconds = deadline_seconds
        names = set(plan.group(group).schedule)
        self._inputs: dict[str, list[EdgePlan]] = defaultdict(list)
        self._outputs: dict[str, list[EdgePlan]] = defaultdict(list)
        for edge in plan.edges:
            if edge.consumer in names:
                self._inputs[edge.consumer].append(edge)
            if edge.producer in names:
                self._outputs[edge.producer].append(edge)
        self._local: dict[str, Batch] = {}
        self._mapped: list[Batch] = []
        self.seconds: dict[str, float] = defaultdict(float)

    def take(self, stage: StagePlan, step: int) -> Batch | None:
        """The rows of `stage` with the columns it reads under the names it knows them by; None for the source."""
        started = time.perf_counter()
        parts = [self._receive(edge, step) for edge in self._inputs[stage.name]]
        self.seconds[f"time/{stage.name}_wait_seconds"] += time.perf_counter() - started
        if not parts:
            return None
        return Batch.join(parts).rename({theirs: ours for ours, theirs in stage.rename.items()})

    def give(self, stage: StagePlan, step: int, batch: Batch) -> None:
        """Hand the stage's columns to everyone who reads them."""
        started = time.perf_counter()
        for edge in self._outputs[stage.name]:
            part = batch.select(edge.columns)
            if edge.transport == "Local":
                self._local[edge.name] = part
            elif stage.mesh.is_row_leader(self._rank):
                self._buffer.put(step, edge.name, part, deadline_seconds=self._deadline_seconds)
        self.seconds[f"time/{stage.name}_put_seconds"] += time.perf_counter() - started

    def end_step(self) -> Scalars:
        """Let go of the step's rows; returns the seconds spent moving them."""
        for batch in self._mapped:
            self._buffer.release(batch)
        self._mapped.clear()
        assert not self._local, f"edges nobody took: {sorted(self._local)}"
        seconds = {name: mean(value) for name, value in self.seconds.items()}
        self.seconds.clear()
        return seconds

    def _receive(self, edge: EdgePlan, step: int) -> Batch:
        if edge.transport == "Local":
            return self._local.pop(edge.name)
        batch = self._buffer.get(step, edge.name, deadline_seconds=self._deadline_seconds)
        self._mapped.append(batch)
        return batch
