"""What a worker sees of the data buffers: rows put and got, weights sent and received, reports and verdicts."""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from rljob_worker.batch import Batch
from rljob_worker.batch.row_index import row_number
from rljob_worker.databuffer.links.buffer_connection import BufferConnection
from rljob_worker.databuffer.links.fencing import Identity
from rljob_worker.databuffer.protocol import worker_answers as say
from rljob_worker.databuffer.protocol import worker_calls as ask
from rljob_worker.databuffer.rows import segment
from rljob_worker.databuffer.rows.segment import Views
from rljob_worker.databuffer.rows.stream import ROW_BYTES, bytes_per_row
from rljob_worker.databuffer.store.segment_files import SegmentFile, mapped
from rljob_worker.databuffer.weights.client import ReceivedChunk, SendingStream, WeightsClient
from rljob_worker.errors import BadData

A = TypeVar("A", bound=say.WorkerReply)


@dataclass(frozen=True, slots=True)
class _Lease:
    edge: str
    step: int
    batch: Batch


@dataclass(frozen=True, slots=True)
class DeliveredRows:
    """Rows of a lease that a guest has made."""

    index: int
    """Number of the lease among those of this rank and step."""
    guest: str
    batch: Batch
    report: bytes
    """Metrics and samples, `metrics.report`."""


class BufferClient:
    """One worker's connection to its own data buffer; calls may come from several threads.

    Every call that waits raises PeerLost when the data buffer, or a peer it needs, is gone, DeadlineExceeded naming
    whom it waited for, and the first cause when the data plane has broken down. What `get` returns are read-only views
    of shared memory: they hold until `release`, or until the next get on the same edge.
    """

    def __init__(self, socket_path: str | Path, identity: Identity) -> None:
        self.identity = identity
        self._own = BufferConnection(socket_path, identity)
        self._lock = threading.Lock()
        self._leases: dict[int, _Lease] = {}
        self._figures: dict[str, float] = defaultdict(float)
        try:
            hello = self._ask(ask.WorkerHello(), say.Welcome)
        except BaseException:
            self.close()
            raise
        self._own.expect(hello.life)
        self._edges = hello.edges
        self._deadline_seconds = hello.deadline_seconds
        places = [SegmentFile(Path(path), num_bytes) for path, num_bytes in hello.places]
        self._write_memory = mapped(places, writable=True)
        self._read_memory = mapped(places, writable=False)
        self._weights = WeightsClient(
            self._own,
            hello.weights,
            hello.deadline_seconds,
            writable=self._write_memory,
            readable=self._read_memory,
        )

    # ---- rows

    def put(self, step: int, edge: str, batch: Batch, *, deadline_seconds: float | None = None) -> None:
        """Hand the rows of this rank to an edge; only the edge's columns go. A rank that leads no rows puts nothing.

        Returns when the rows are in shared memory. Zero rows are a part like any other, with the same columns.
        """
        ends = self._edges[edge]
        if ends.part is None:
            return
        start = time.perf_counter()
        chosen = batch.select(ends.columns)
        contents = segment.contents_of(chosen)
        if contents.num_bytes > ROW_BYTES:  # else no row can be too long
            _refuse_long_rows(chosen, edge)
        reserve = partial(ask.ReserveRows, edge=edge, step=step, num_bytes=contents.num_bytes)
        asked = time.perf_counter()
        room = self._poll(reserve, say.Reservation, deadline_seconds)
        room_seconds = time.perf_counter() - asked
        segment.write(self._write_memory, room.offset, contents, chosen)
        self._ask(ask.SealRows(edge=edge, step=step, offset=room.offset, contents=contents), say.Done)
        self._count(
            edge,
            put_bytes=contents.num_bytes,
            put_rows=len(chosen),
            put_seconds=time.perf_counter() - start,
            room_seconds=room_seconds,
        )

    def get(self, step: int, edge: str, *, deadline_seconds: float | None = None) -> Batch:
        """The rows of this rank's data-parallel coordinate, ascending by row_id; read-only views of shared memory."""
        self._release_before(edge, step)
        start = time.perf_counter()
        location = self._poll(partial(ask.GetRows, edge=edge, step=step), say.ShareLocation, deadline_seconds)
        batch = segment.views(self._read_memory, location.offset, location.contents).as_batch()
        with self._lock:
            self._leases[id(batch)] = _Lease(edge, step, batch)
        self._count(
            edge,
            get_bytes=location.contents.num_bytes,
            get_rows=len(batch),
            get_seconds=time.perf_counter() - start,
            producer_seconds=location.producer_seconds,
            transfer_seconds=location.transfer_seconds,
        )
        return batch

    def release(self, batch: Batch) -> None:
        """Give back what `get` returned: its arrays must not be read any more. Other batches are let through."""
        with self._lock:
            lease = self._leases.pop(id(batch), None)
        if lease is not None:
            self._ask(ask.ReleaseRows(edge=lease.edge, step=lease.step), say.Done)

    def _release_before(self, edge: str, step: int) -> None:
        with self._lock:
            old = [lease.batch for lease in self._leases.values() if lease.edge == edge and lease.step < step]
        for batch in old:
            self.release(batch)

    # ---- weights

    @contextmanager
    def sending(self, version: int, edge: str) -> Iterator[SendingStream]:
        """This source's chunks of a version. OutOfOrder unless versions grow, and while as many are held as the plan
        has."""
        start = time.perf_counter()
        with self._weights.sending(version, edge) as stream:
            yield stream
        self._count(edge, put_bytes=stream.num_bytes, put_seconds=time.perf_counter() - start)

    def release_version(self, version: int, edge: str) -> None:
        """Nobody will ask this source for a version any more."""
        self._weights.release_version(version, edge)

    def receive(self, version: int, edge: str) -> Generator[ReceivedChunk, None, None]:
        """The chunks of all sources of a version, in any order. To close it early is to skip the rest."""
        return self._weights.receive(version, edge)

    # ---- leases

    def leases(self, stage: str) -> StageLeases:
        """What this worker may draw in a generating stage."""
        return StageLeases(stage, self._ask, self._poll)

    # ---- leases of guests

    def open_leases(self, first: int, last: int, oldest_version: int) -> None:
        """Guests may take leases of steps `first` to `last`: the versions that these are drawn with are there."""
        self._ask(ask.OpenLeases(first=first, last=last, oldest_version=oldest_version), say.Done)

    def open_validation(self, step: int, oldest_version: int) -> None:
        """Guests may take pieces of the validation of a training step, whose version is there."""
        self._ask(ask.OpenValidation(step=step, oldest_version=oldest_version), say.Done)

    def deliveries(self, stage: str, step: int) -> Generator[DeliveredRows, None, None]:
        """Rows of this rank's leases of a step as they come, in any order; each is views of shared memory that hold
        until the next is asked for. Ends once every rank of the stage has all of its own. Raises DeadlineExceeded
        naming what is missing when nothing has come for long."""
        request = partial(ask.NextDelivery, stage=stage, step=step)
        while not isinstance(answer := self._poll(request, say.WorkerReply, math.inf), say.Complete):
            assert isinstance(answer, say.DeliveredLease)
            batch = segment.views(self._read_memory, answer.offset, answer.contents).as_batch()
            yield DeliveredRows(answer.index, answer.guest, batch, answer.report)
            self._ask(ask.ReleaseDelivery(stage=stage, step=step, index=answer.index), say.Done)

    def guests(self) -> say.GuestFigures:
        """Counts of guests that ask this host, and of its leases, since it began."""
        return self._ask(ask.AskGuests(), say.GuestFigures)

    def next_lease(self) -> say.GuestLease | None:
        """As a guest: what to generate next, its `stage` empty when there is nothing more; None when there is nothing
        yet, after at most a second."""
        answer = self._own.call(ask.RequestLease(waited=0.0, seconds=math.inf))
        return answer if isinstance(answer, say.GuestLease) else None

    def deliver(self, lease: say.GuestLease, batch: Batch, report: bytes) -> None:
        """As a guest: hand in the rows of the lease. Returns when they are in shared memory."""
        contents = segment.contents_of(batch)
        reserve = partial(
            ask.ReserveLease,
            stage=lease.stage,
            step=lease.step,
            rank=lease.rank,
            index=lease.index,
            num_bytes=contents.num_bytes,
        )
        room = self._poll(reserve, say.Reservation, None)
        segment.write(self._write_memory, room.offset, contents, batch)
        self._ask(ask.DeliverLease(offset=room.offset, contents=contents, report=report), say.Done)

    def return_lease(self) -> None:
        """As a guest: give back the lease that this worker has."""
        self._ask(ask.ReturnLease(), say.Done)

    # ---- reports and what the lead says

    def report(self, step: int, payload: bytes, topic: ask.ReportTopic = "report") -> None:
        """What this worker has to say at the end of a step, or of its validation; merged with everybody's on its way to
        the lead."""
        self._ask(ask.SendReport(step=step, payload=payload, topic=topic), say.Done)

    def collect(self, step: int, topic: ask.ReportTopic = "report", deadline_seconds: float | None = None) -> bytes:
        """The lead's: the merged reports of all workers, or of all who validate."""
        return self._poll(partial(ask.Collect, step=step, topic=topic), say.Said, deadline_seconds).payload

    def announce(self, topic: str, step: int, payload: bytes) -> None:
        """The lead's: tell every worker. topic: "opening" (step 0) or "verdict"."""
        self._ask(ask.Announce(topic=topic, step=step, payload=payload), say.Done)

    def await_announcement(self, topic: str, step: int) -> bytes:
        """What the lead announced."""
        return self._poll(partial(ask.Await, topic=topic, step=step), say.Said, None).payload

    def request_stop(self) -> None:
        """This worker was asked to stop: the lead hears of it at once."""
        self._ask(ask.RequestStop(), say.Done)

    def stop_requested(self) -> bool:
        """The lead's: whether any worker was asked to stop."""
        return self._ask(ask.IsStopRequested(), say.Flag).value

    # ---- the rest

    def set_status(self, status: dict[str, Any]) -> None:
        """Say what this worker does (stage, step, anything): it appears in the errors of peers that wait for us."""
        self._ask(ask.SetStatus(status=status), say.Done)

    def peer_status(self, group: str, host: int, *, rank: int | None = None) -> dict[Any, Any]:
        """Last posts of the workers of a host by rank, or of one rank, with their age in `age_seconds`."""
        by_rank = self._ask(ask.AskStatus(group=group, host=host), say.Statuses).by_rank
        return by_rank if rank is None else by_rank.get(rank, {})

    def drain(self, deadline_seconds: float | None = None) -> None:
        """Wait until everything this worker put, sent and said has arrived."""
        self._poll(ask.Drain, say.Done, deadline_seconds)

    def statistics(self) -> dict[str, float]:
        """Figures since the last call, as "figure/edge": bytes, rows and seconds of put and get.

        `producer_seconds` (until the last producer had put) and `transfer_seconds` are what a get's seconds consist of;
        `room_seconds` is the part of a put of rows that waited for room.
        """
        with self._lock:
            figures, self._figures = dict(self._figures), defaultdict(float)
        return figures

    def close(self) -> None:
        self._own.close()

    def _count(self, edge: str, **figures: float) -> None:
        with self._lock:
            for name, value in figures.items():
                self._figures[f"{name}/{edge}"] += value

    def _ask(self, request: ask.WorkerCall, kind: type[A]) -> A:
        answer = self._own.call(request)
        assert isinstance(answer, kind), f"{answer} is not an answer to {request}"
        return answer

    def _poll(self, request: Callable[..., ask.WaitingCall], kind: type[A], deadline_seconds: float | None) -> A:
        seconds = self._deadline_seconds if deadline_seconds is None else deadline_seconds
        answer = self._own.poll(lambda waited: request(waited=waited, seconds=seconds), seconds)
        assert isinstance(answer, kind), f"{answer} is not a {kind.__name__}"
        return answer


@dataclass(frozen=True, slots=True)
class StageLeases:
    """Leases of one stage, for the leader of a copy. Rounds of a step are numbered from 0."""

    _stage: str
    _ask: Callable[[ask.WorkerCall, type[say.Done]], say.Done]
    _poll: Callable[[Callable[..., ask.WaitingCall], type[Any], float | None], Any]

    def take(self, step: int, number: int, num_leases: int) -> int | None:
        """A lease of a round of `num_leases`, by number; None when all are taken. Waits while an owner holds the
        question because an earlier step is not done."""
        request = partial(ask.TakeLease, stage=self._stage, step=step, number=number, num_leases=num_leases)
        lease: int | None = self._poll(request, say.Lease, None).lease
        return lease

    def tell(self, step: int, number: int, outcomes: bytes) -> None:
        """What became of the draw numbers of a round, a byte each: 0 for those that others drew."""
        self._ask(ask.TellOutcomes(stage=self._stage, step=step, number=number, payload=outcomes), say.Done)

    def hear(self, step: int, number: int) -> bytes:
        """What became of all of them, once every generator has reported its part."""
        request = partial(ask.HearOutcomes, stage=self._stage, step=step, number=number)
        payload: bytes = self._poll(request, say.Said, None).payload
        return payload


def _refuse_long_rows(batch: Batch, edge: str) -> None:
    sizes = bytes_per_row(Views(batch.index, dict(batch.columns)))
    if len(sizes) and sizes.max() > ROW_BYTES:
        row = int(np.argmax(sizes))
        largest = max(batch.columns, key=lambda name: batch.columns[name].nbytes)
        raise BadData(
            f"edge {edge}: row {row_number(batch.row_ids[row])} has {int(sizes[row]):,} bytes, at most {ROW_BYTES:,} "
            f"are sent; the largest column is {largest}: leave it out of the stage's writes or make it smaller"
        )
