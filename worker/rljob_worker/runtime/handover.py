"""Moving rows between stages: a local edge hands the object on, every other edge goes through the data buffer.

Rows with pictures are taken as soon as they are there, in a thread, so that their pictures are decoded while earlier
stages run.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from types import MappingProxyType
from typing import Protocol

from rljob_api.catalogue.columns import IMAGES
from rljob_api.planning.plan import EdgePlan, Plan, StagePlan
from rljob_worker.batch import Batch
from rljob_worker.errors import DeadlineExceeded
from rljob_worker.metrics.scalars import Scalars, mean


class EdgeBuffer(Protocol):
    """The part of the data buffer client that edges use."""

    def put(self, step: int, edge: str, batch: Batch, *, deadline_seconds: float) -> None: ...

    def get(self, step: int, edge: str, *, deadline_seconds: float) -> Batch: ...

    def release(self, batch: Batch) -> None: ...


class Handover:
    """Inputs and outputs of one rank's stages. Holds a local batch only until its last consumer has run.

    decode_ahead: by stage that computes with pictures, what begins to decode those of rows that wait for it.
    """

    def __init__(
        self,
        plan: Plan,
        group: str,
        rank: int,
        buffer: EdgeBuffer,
        deadline_seconds: float,
        decode_ahead: Mapping[str, Callable[[Batch], None]] = MappingProxyType({}),
    ) -> None:
        self._buffer = buffer
        self._rank = rank
        self._deadline_seconds = deadline_seconds
        self._decode_ahead = decode_ahead
        names = set(plan.group(group).schedule)
        self._inputs: dict[str, list[EdgePlan]] = defaultdict(list)
        self._outputs: dict[str, list[EdgePlan]] = defaultdict(list)
        for edge in plan.edges:
            if edge.consumer in names:
                self._inputs[edge.consumer].append(edge)
            if edge.producer in names:
                self._outputs[edge.producer].append(edge)
        self._shown = [edge for name in decode_ahead for edge in self._inputs[name] if _brings_pictures(edge)]
        self._coming: dict[str, Future[Batch]] = {}
        self._local: dict[str, Batch] = {}
        self._mapped: list[Batch] = []
        self.seconds: dict[str, float] = defaultdict(float)

    def begin_step(self, step: int) -> None:
        """Ask for the step's rows with pictures, ahead of the stages that take them."""
        for edge in self._shown:
            self._coming[edge.name] = rows = Future[Batch]()
            threading.Thread(target=self._fill, args=(rows, edge, step), name="rows-ahead", daemon=True).start()

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
        batch = self._got(edge.name, step)
        self._mapped.append(batch)
        return batch

    def _got(self, edge: str, step: int) -> Batch:
        """Rows of the data buffer. Whoever asked for them ahead began to wait earlier: where that was in vain, they are
        asked for once more, until this stage has waited for as long as it may."""
        started = time.monotonic()
        coming = self._coming.pop(edge, None)
        if coming is not None:
            with suppress(DeadlineExceeded):
                return coming.result()
        left = max(0.0, self._deadline_seconds - (time.monotonic() - started))
        return self._buffer.get(step, edge, deadline_seconds=left)

    def _fill(self, rows: Future[Batch], edge: EdgePlan, step: int) -> None:
        try:
            batch = self._buffer.get(step, edge.name, deadline_seconds=self._deadline_seconds)
        except BaseException as error:  # whatever it is, it belongs to the stage that takes the rows
            rows.set_exception(error)
            return
        try:
            with suppress(Exception):  # what is wrong with a picture is raised where its row is computed
                self._decode_ahead[edge.consumer](batch)
        finally:
            rows.set_result(batch)


def _brings_pictures(edge: EdgePlan) -> bool:
    """Whether pictures come from another process."""
    return IMAGES in edge.columns and edge.transport != "Local"
