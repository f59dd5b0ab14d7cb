"""What the workers of a simulated job do, step after step, and whether what they get is right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np

from rljob_api.planning.plan import Plan
from rljob_worker.batch import Batch
from rljob_worker.databuffer.protocol import worker_calls as ask
from rljob_worker.databuffer.routes.assignment import ProducerLayout
from rljob_worker.databuffer.routes.hosts import Host, WorkerId
from rljob_worker.databuffer.routes.job_tree import OPENING, VERDICT
from rljob_worker.databuffer.rows import segment
from rljob_worker.databuffer.rows.tests.batches import same
from rljob_worker.databuffer.tests.gang import rows
from rljob_worker.databuffer.tests.simulation.job import Own, SimulatedJob
from rljob_worker.databuffer.weights.client import WeightsClient
from rljob_worker.errors import RLJobError
from rljob_worker.metrics.report import StepReport, merge_reports, report_to_bytes
from rljob_worker.metrics.scalars import mean

WEIGHTS = "weights/actor"


@dataclass
class Wait:
    """A call of a worker."""

    what: str
    start: float
    seconds: float
    """How long it may take."""
    end: float | None = None


@dataclass
class SimulatedWorker:
    """One worker. `row_length`: values of a row, 0 for a few."""

    job: SimulatedJob
    worker: WorkerId
    num_steps: int
    row_length: int = 0
    pace: float = 0.0
    """Longest that it computes, several times a step."""
    ended: Callable[[], None] = lambda: None
    waits: list[Wait] = field(default_factory=list)
    error: RLJobError | None = None
    wrong: list[str] = field(default_factory=list)
    """What came and was not as it was put."""
    is_over: bool = False

    def __post_init__(self) -> None:
        self.pod = self.job.pod_of(self.worker)
        self._own = Own(self.pod, self.worker)
        self._deadline = self.job.plan.spec.data_buffer.deadline_seconds
        plan = self.job.plan
        self.ordinal = plan.worker_offset(self.worker.group) + self.worker.rank
        self.is_lead = self.worker == WorkerId(plan.lead_group, 0)
        self.job.loop.spawn(self._run, self.pod, self.job.loop.moment())

    @property
    def is_done(self) -> bool:
        return self.is_over or self.pod.is_dead

    def __str__(self) -> str:
        return f"{self.worker.group}-{self.worker.rank}"

    # ---- what it does

    def _run(self) -> None:
        try:
            self._work()
        except RLJobError as error:
            self.error = error
        self.is_over = True
        self.ended()

    def _work(self) -> None:
        hello = self._own.call(ask.WorkerHello())
        self._edges, self._weights_ends = hello.edges, hello.weights
        memory = self.pod.memory
        self._weights = WeightsClient(self._own, hello.weights, self._deadline, writable=memory, readable=memory)
        if self.is_lead:
            self._own.call(ask.Announce(topic=OPENING, step=0, payload=b"opening"))
        self._expect("opening", self._await(OPENING, 0), b"opening")
        for step in range(1, self.num_steps + 1):
            self._step(step)
        self._poll("drain", ask.Drain)

    def _step(self, step: int) -> None:
        self._own.call(ask.SetStatus(status={"step": step}))
        self._compute()
        if WEIGHTS in self._weights_ends:
            self._pass_weights(step)
        self._compute()
        for edge, ends in self._edges.items():
            if ends.part is not None:
                self._put(step, edge, ends)
        for edge, ends in self._edges.items():
            if ends.share is not None:
                self._get(step, edge, ends.share)
        self._compute()
        self._own.call(ask.SendReport(step=step, payload=report_of(step, self.ordinal)))
        if self.is_lead:
            collected = self._poll(f"reports of step {step}", partial(ask.Collect, step=step)).payload
            self._expect(f"reports of step {step}", collected, merged_report(step, self.job.plan.num_workers))
            self._own.call(ask.Announce(topic=VERDICT, step=step, payload=b"verdict on " + collected))
        expected = b"verdict on " + merged_report(step, self.job.plan.num_workers)
        self._expect(f"verdict on step {step}", self._await(VERDICT, step), expected)

    def _compute(self) -> None:
        self.job.loop.sleep(self.pace * self.job.loop.random.random(), self.pod)

    # ---- rows

    def _put(self, step: int, edge: str, ends: Any) -> None:
        num_parts = self.pod.buffer.edges.routes[edge].num_parts
        batch = part_of(self.job.plan, step, ends.part, num_parts, self.row_length).select(ends.columns)
        contents = segment.contents_of(batch)
        reserve = partial(ask.ReserveRows, edge=edge, step=step, num_bytes=contents.num_bytes)
        room = self._poll(f"room for {edge} of step {step}", reserve)
        segment.write(self.pod.memory, room.offset, contents, batch)
        self._own.call(ask.SealRows(edge=edge, step=step, offset=room.offset, contents=contents))

    def _get(self, step: int, edge: str, share: int) -> None:
        location = self._poll(f"rows of {edge}, step {step}", partial(ask.GetRows, edge=edge, step=step))
        contents = location.contents
        batch = segment.views(self.pod.memory, location.offset, contents).as_batch()
        expected = self._expected(step, edge, share)
        if not same(batch, expected.select(self._edges[edge].columns)):
            self.wrong.append(f"rows of {edge}, step {step}: {batch.row_ids.tolist()}")
        self._own.call(ask.ReleaseRows(edge=edge, step=step))

    def _expected(self, step: int, edge: str, share: int) -> Batch:
        """All rows of the step that the route assigns to the share, in order."""
        everything, route = whole(self.job.plan, step, self.row_length), self.pod.buffer.edges.routes[edge]
        if (edge, step) not in self.job.assigned:
            self.job.assigned[edge, step] = route.assign(step, ProducerLayout.of_part(0, everything.index))
        return everything.take(np.flatnonzero(self.job.assigned[edge, step] == share))

    # ---- weights

    def _pass_weights(self, version: int) -> None:
        ends = self._weights_ends[WEIGHTS]
        if ends.source is not None:
            self._weights.release_version(version - self.job.plan.num_versions, WEIGHTS)
            with self._timed(f"weights {version} sent"), self._weights.sending(version, WEIGHTS) as stream:
                for index in range(num_chunks(ends.source, version)):
                    data = chunk(ends.source, version, index, ends.slot_bytes)
                    stream.reserve(len(data))[:] = data
                    stream.seal(b"table of %d" % index)
        if ends.receives:
            for due in self._due(version):
                self._receive_weights(due)

    def _due(self, version: int) -> range:
        """Versions that a rank reads when `version` is sent. A host that comes late reads all that it has missed, which
        it asks other hosts for."""
        first = self.pod.first_version
        return range(1 if version == first else version, version + 1) if version >= first else range(0)

    def _receive_weights(self, version: int) -> None:
        slot_bytes, had = self._weights_ends[WEIGHTS].slot_bytes, set()
        with self._timed(f"weights {version} received"):
            for result in self._weights.receive(version, WEIGHTS):
                expected = chunk(result.source, version, result.index, slot_bytes)
                is_right = result.table == b"table of %d" % result.index and np.array_equal(result.data, expected)
                if not is_right or (result.source, result.index) in had:
                    self.wrong.append(f"chunk {result.index} of source {result.source}, version {version}")
                had.add((result.source, result.index))
        num_sources = len(self.pod.buffer.weights_routes.by_edge[WEIGHTS].sources)
        if len(had) != sum(num_chunks(source, version) for source in range(num_sources)):
            self.wrong.append(f"weights {version}: {sorted(had)}")

    # ---- calls

    def _await(self, topic: str, step: int) -> bytes:
        payload: bytes = self._poll(f"{topic} of step {step}", partial(ask.Await, topic=topic, step=step)).payload
        return payload

    def _poll(self, what: str, request: Callable[..., ask.WaitingCall]) -> Any:
        with self._timed(what):
            return self._own.poll(lambda waited: request(waited=waited, seconds=self._deadline), self._deadline)

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        wait = Wait(what, self.job.loop.now, self._deadline)
        self.waits.append(wait)
        try:
            yield
        finally:
            wait.end = self.job.loop.now

    def _expect(self, what: str, result: bytes, expected: bytes) -> None:
        if result != expected:
            self.wrong.append(what)


def workers_of(plan: Plan, host: Host) -> list[WorkerId]:
    size = plan.group(host.group).workers_per_host
    return [WorkerId(host.group, rank) for rank in range(host.index * size, (host.index + 1) * size)]


# ---- what is said


def report_of(step: int, ordinal: int) -> bytes:
    return report_to_bytes(StepReport({"loss": mean(step + ordinal / 8)}), ordinal)


@cache
def merged_report(step: int, num_workers: int) -> bytes:
    return merge_reports([report_of(step, ordinal) for ordinal in range(num_workers)])


def num_chunks(source: int, version: int) -> int:
    return 1 + (source + version) % 3


@cache
def chunk(source: int, version: int, index: int, slot_bytes: int) -> np.ndarray:
    data = np.arange(200 + 100 * index) * (1 + source) + version
    return data.astype(np.uint8)[:slot_bytes]


@cache
def _whole(batch_size: int, group_size: int, step: int, length: int) -> Batch:
    numbers = range((step - 1) * batch_size * group_size, step * batch_size * group_size)
    return rows(list(numbers), group_size, {row: length + row % 7 for row in numbers} if length else None)


def whole(plan: Plan, step: int, length: int) -> Batch:
    return _whole(plan.spec.data.batch_size, plan.spec.algorithm.group_size, step, length)


def part_of(plan: Plan, step: int, index: int, size: int, length: int) -> Batch:
    """What one producer of several makes, by ordinal."""
    everything = whole(plan, step, length)
    n = plan.spec.data.batch_size
    return everything.take(np.flatnonzero(everything.index.group_ids % n * size // n == index))
