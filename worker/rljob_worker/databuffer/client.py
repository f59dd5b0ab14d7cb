"""What a worker sees of the data buffers: rows put and got, broadcasts sent and received, by way of its own one."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.flight as flight

from rljob_worker.batch import Batch
from rljob_worker.databuffer.broadcast import checksum_of
from rljob_worker.databuffer.faults import from_flight, is_pending
from rljob_worker.databuffer.fencing import Badge, Identity
from rljob_worker.databuffer.peers import OPTIONS
from rljob_worker.databuffer.rows import segment
from rljob_worker.databuffer.rows.segment import Contents, Views
from rljob_worker.databuffer.rows.stream import MESSAGE_BYTES, row_bytes
from rljob_worker.databuffer.shared_memory import mapped
from rljob_worker.errors import BadData, DeadlineExceeded

CALL_SECONDS = 30.0
GRACE_SECONDS = 10.0
"""The data buffer explains a time-out better than its client can: the client waits this much longer."""


@dataclass(frozen=True, slots=True)
class _Lease:
    edge: str
    step: int
    batch: Batch


class BufferClient:
    """One worker's connection to its own data buffer; calls may come from several threads.

    put/get and send/receive raise PeerLost when the data buffer, or a peer it needs, is gone, and DeadlineExceeded
    naming whom they waited for. What get and receive return are read-only views of shared memory: they hold until
    `release`, or until the next get on the same edge (the next chunk, for receive).
    """

    def __init__(self, socket_path: str | Path, identity: Identity) -> None:
        self.identity = identity
        self._whom = f"the data buffer of host {identity.pod} (own sidecar, {socket_path})"
        badge = Badge(identity)
        self._client = flight.FlightClient(f"grpc+unix://{socket_path}", middleware=[badge], generic_options=OPTIONS)
        self._lock = threading.Lock()
        self._leases: dict[int, _Lease] = {}
        self._figures: dict[str, float] = defaultdict(float)
        hello = self._act("hello", {})
        badge.expect(hello["life"])
        self._edges: dict[str, dict[str, Any]] = hello["edges"]
        self._broadcasts = set(hello["broadcasts"])
        self._deadline_seconds: float = hello["deadline_seconds"]
        path, capacity = Path(hello["arena"]), hello["capacity"]
        self._write_memory = mapped(path, capacity, writable=True)
        self._read_memory = mapped(path, capacity, writable=False)

    # ---- rows

    def put(self, step: int, edge: str, batch: Batch, *, deadline_seconds: float | None = None) -> None:
        """Hand the rows of this rank to an edge; only the edge's columns go. A rank that leads no rows puts nothing.

        Returns when the rows are in shared memory. Zero rows are a part like any other, with the same columns.
        """
        if edge in self._broadcasts:
            self.send(step, edge, [batch], deadline_seconds=deadline_seconds)
            return
        route = self._edges[edge]
        if route["part"] is None:
            return
        start = time.perf_counter()
        chosen = batch if route["columns"] is None else batch.select(route["columns"])
        _refuse_long_rows(chosen, edge)
        contents = segment.contents_of(chosen)
        body = {"edge": edge, "step": step, "bytes": contents.num_bytes}
        offset = self._poll("reserve", body, deadline_seconds)["offset"]
        segment.write(self._write_memory, offset, contents, chosen)
        self._act("seal", {"offset": offset, "contents": contents.to_json()})
        self._count(edge, put_bytes=contents.num_bytes, put_rows=len(chosen), put_seconds=time.perf_counter() - start)

    def get(self, step: int, edge: str, *, deadline_seconds: float | None = None) -> Batch:
        """The rows of this rank's data-parallel coordinate, ascending by row_id; read-only views of shared memory."""
        if edge in self._broadcasts:
            return self._get_broadcast(step, edge, deadline_seconds)
        self._release_before(edge, step)
        start = time.perf_counter()
        found = self._poll("get", {"edge": edge, "step": step}, deadline_seconds)
        contents = Contents.from_json(found["contents"])
        batch = segment.views(self._read_memory, found["offset"], contents).as_batch()
        with self._lock:
            self._leases[id(batch)] = _Lease(edge, step, batch)
        seconds = time.perf_counter() - start
        self._count(edge, get_bytes=contents.num_bytes, get_rows=len(batch), get_seconds=seconds, **found["timing"])
        return batch

    def _get_broadcast(self, step: int, edge: str, deadline_seconds: float | None) -> Batch:
        """All chunks of a version as one batch in private memory."""
        return Batch.concat([_copied(chunk) for chunk in self.receive(step, edge, deadline_seconds=deadline_seconds)])

    def release(self, batch: Batch) -> None:
        """Give back what `get` returned: its arrays must not be read any more. Other batches are let through."""
        with self._lock:
            lease = self._leases.pop(id(batch), None)
        if lease is not None:
            self._act("release", {"edge": lease.edge, "step": lease.step})

    def _release_before(self, edge: str, step: int) -> None:
        with self._lock:
            old = [lease.batch for lease in self._leases.values() if lease.edge == edge and lease.step < step]
        for batch in old:
            self.release(batch)

    # ---- broadcasts

    def send(self, version: int, edge: str, chunks: Iterable[Batch], *, deadline_seconds: float | None = None) -> None:
        """Send chunks to every rank at the other end of a broadcast edge; versions only grow, else OutOfOrder.

        Returns when the last chunk is in shared memory; blocks while the window is full, up to the deadline per chunk.
        """
        start = time.perf_counter()
        self._act("send.open", {"edge": edge, "version": version})
        index = 0
        for chunk in chunks:
            self._send_chunk(version, edge, index, chunk, deadline_seconds)
            index += 1
        self._act("send.close", {"edge": edge, "version": version, "chunks": index})
        self._count(edge, put_seconds=time.perf_counter() - start)

    def _send_chunk(self, version: int, edge: str, index: int, chunk: Batch, deadline_seconds: float | None) -> None:
        contents = segment.contents_of(chunk)
        body = {"edge": edge, "version": version, "index": index}
        reserve = {**body, "bytes": contents.num_bytes}
        offset = self._poll("send.reserve", reserve, deadline_seconds)["offset"]
        segment.write(self._write_memory, offset, contents, chunk)
        checksum = checksum_of(self._write_memory[offset : offset + contents.num_bytes])
        self._act("send.seal", {**body, "offset": offset, "contents": contents.to_json(), "checksum": checksum})
        self._count(edge, put_bytes=contents.num_bytes, put_rows=len(chunk))

    def receive(self, version: int, edge: str, *, deadline_seconds: float | None = None) -> Iterator[Batch]:
        """Chunks of one version as they arrive; each is a view of shared memory that holds until the next is asked."""
        index = 0
        try:
            while True:
                body = {"edge": edge, "version": version, "index": index}
                found = self._poll("receive", body, deadline_seconds)
                if "end" in found:
                    return
                contents = Contents.from_json(found["contents"])
                self._count(edge, get_bytes=contents.num_bytes, get_rows=contents.num_rows)
                yield segment.views(self._read_memory, found["offset"], contents).as_batch()
                self._act("receive.release", body)
                index += 1
        except GeneratorExit:
            self._act("receive.skip", {"edge": edge, "version": version})
            raise

    # ---- the rest

    def post(self, status: dict[str, Any]) -> None:
        """Say what this worker does (stage, step, anything): it appears in the error of whoever waits for us."""
        self._act("post", status)

    def peer_status(self, group: str, host: int, *, rank: int | None = None) -> dict[str, Any]:
        """Last posts of the workers of a host by rank, or of one rank, with their age in `age_seconds`."""
        answer = self._act("status", {"group": group, "host": host, "rank": rank})
        return answer if rank is None else dict(answer.get(str(rank), {}))

    def drain(self, deadline_seconds: float | None = None) -> None:
        """Wait until everything this worker put has been read by its consumers."""
        self._poll("drain", {}, deadline_seconds)

    def statistics(self) -> dict[str, float]:
        """Figures since the last call, as "figure/edge": bytes, rows and seconds of put and get.

        `producer_seconds` (until the last producer had put) and `transfer_seconds` are what a get's seconds consist of.
        """
        with self._lock:
            figures, self._figures = dict(self._figures), defaultdict(float)
        return figures

    def close(self) -> None:
        self._client.close()

    # ---- calls

    def _count(self, edge: str, **figures: float) -> None:
        with self._lock:
            for name, value in figures.items():
                self._figures[f"{name}/{edge}"] += value

    def _poll(self, action: str, body: dict[str, Any], deadline_seconds: float | None) -> dict[str, Any]:
        """Ask again while the answer is pending: every call is short, so signals reach Python between two of them."""
        seconds = self._deadline_seconds if deadline_seconds is None else deadline_seconds
        start = time.monotonic()
        while True:
            waited = time.monotonic() - start
            try:
                return self._act(action, {**body, "seconds": seconds - waited, "waited": waited})
            except _Pending:
                if waited > seconds + GRACE_SECONDS:
                    raise DeadlineExceeded(f"{self._whom} had no answer to {action} {body} in {waited:.0f} s") from None

    def _act(self, action: str, body: dict[str, Any]) -> dict[str, Any]:
        options = flight.FlightCallOptions(timeout=CALL_SECONDS)
        try:
            call = self._client.do_action(flight.Action(action, json.dumps(body).encode()), options)
            answer: dict[str, Any] = json.loads(next(call).body.to_pybytes())
            return answer
        except flight.FlightError as error:
            if is_pending(error):
                raise _Pending from None
            raise from_flight(error, self._whom) from error


def _copied(batch: Batch) -> Batch:
    return batch.take(np.arange(len(batch)))


class _Pending(Exception):
    """Ask again."""


def _refuse_long_rows(batch: Batch, edge: str) -> None:
    views = Views(batch.index, dict(batch.columns))
    sizes = row_bytes(views)
    if len(sizes) and sizes.max() > MESSAGE_BYTES:
        row = int(np.argmax(sizes))
        largest = max(batch.columns, key=lambda name: batch.columns[name].nbytes)
        raise BadData(
            f"edge {edge}: row {int(batch.row_ids[row])} has {int(sizes[row]):,} bytes, a message holds "
            f"{MESSAGE_BYTES:,}; the largest column is {largest}: leave it out of the stage's writes or make it smaller"
        )
