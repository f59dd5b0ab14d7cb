"""Moves broadcasts from host to host: a parent announces a version, its children fetch it as one stream each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from rljob_worker.arrow_table import numbers_of
from rljob_worker.databuffer.broadcast import Broadcasts, checksum_of
from rljob_worker.databuffer.hosts import Host
from rljob_worker.databuffer.metrics import BufferMetrics
from rljob_worker.databuffer.peers import Peers
from rljob_worker.databuffer.rows.segment import Bytes, Contents
from rljob_worker.databuffer.store import Item, Store
from rljob_worker.errors import DeadlineExceeded, PeerLost, RLJobError

MAX_RELAYS = 64
PIECE_BYTES = 1 << 20

SCHEMA = pa.schema([pa.field("bytes", pa.uint8(), nullable=False)])

Head = dict[str, Any]
"""Metadata of a piece: index of its chunk; contents and checksum with the first piece; `end` after the last chunk."""


class Relay:
    """One host's links to its parent and to its children."""

    def __init__(
        self,
        *,
        broadcasts: Broadcasts,
        store: Store,
        memory: Bytes,
        peers: Peers,
        metrics: BufferMetrics,
        deadline_seconds: float,
    ) -> None:
        self._broadcasts = broadcasts
        self._store = store
        self._memory = memory
        self._peers = peers
        self._metrics = metrics
        self._deadline_seconds = deadline_seconds
        self._threads = ThreadPoolExecutor(MAX_RELAYS, "relay")

    def close(self) -> None:
        """Start no more work."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def begin(self, edge: str, version: int) -> None:
        """A version begins on this host; tell the children."""
        self._broadcasts.open(edge, version)
        for child in self._broadcasts.children(edge):
            self._threads.submit(self._announce, child, edge, version)

    def announced(self, edge: str, version: int) -> None:
        """The parent has begun a version: begin it here and fetch it."""
        if not self._broadcasts.has(edge, version):  # else the same message again
            self.begin(edge, version)
            self._threads.submit(self._fetch, self._broadcasts.parent(edge), edge, version)

    def stream(
        self, edge: str, version: int, first: int, cancelled: Callable[[], bool]
    ) -> Iterator[tuple[pa.RecordBatch, bytes]]:
        """For a child: chunks in order from `first`, cut into pieces; each waits until this host has it."""
        for index, chunk in enumerate(self._broadcasts.chunks(edge, version, first, cancelled), first):
            if isinstance(chunk, int):
                yield _record(self._memory[:0]), json.dumps({"end": chunk}).encode()
                return
            assert chunk.contents is not None
            head = {"index": index, "contents": chunk.contents.to_json(), "checksum": chunk.checksum}
            stop = chunk.offset + chunk.contents.num_bytes
            for start in range(chunk.offset, stop, PIECE_BYTES):
                yield _record(self._memory[start : min(start + PIECE_BYTES, stop)]), json.dumps(head).encode()
                head = {"index": index}

    def _announce(self, child: Host, edge: str, version: int) -> None:
        try:
            self._peers.act(child, "announce", {"edge": edge, "version": version})
        except RLJobError as error:
            self._broadcasts.fail(edge, version, error)

    def _fetch(self, parent: Host, edge: str, version: int) -> None:
        """Runs on a thread of its own; a failure ends in the version's state, where the ranks wait."""
        try:
            self._peers.attempt(parent, lambda client: self._receive(client, parent, edge, version))
        except RLJobError as error:
            self._broadcasts.fail(edge, version, error)

    def _receive(self, client: flight.FlightClient, parent: Host, edge: str, version: int) -> None:
        first = self._broadcasts.num_sealed(edge, version)  # not 0 when a broken stream is taken up again
        ticket = json.dumps({"edge": edge, "version": version, "first": first}).encode()
        reader = client.do_get(flight.Ticket(ticket), flight.FlightCallOptions(timeout=self._deadline_seconds))
        while True:
            piece = reader.read_chunk()
            head: Head = json.loads(piece.app_metadata.to_pybytes())
            if "end" in head:
                self._broadcasts.finish(edge, version, head["end"])
                return
            self._take_chunk(reader, piece, head, parent, Item(edge, version, "chunk", head["index"]))

    def _take_chunk(self, reader: Any, piece: Any, head: Head, parent: Host, item: Item) -> None:
        contents = Contents.from_json(head["contents"])
        edge, version, index, size = item.edge, item.step, item.number, contents.num_bytes
        segment = self._broadcasts.reserve(edge, version, index, size, self._deadline_seconds)
        if segment is None:
            raise DeadlineExceeded(self._broadcasts.explain_full(item, size, self._deadline_seconds))
        at, stop = segment.offset, segment.offset + size
        while True:
            data = numbers_of(piece.data.column(0), "uint8")
            self._memory[at : at + len(data)] = data
            at += len(data)
            if at == stop:
                break
            piece = reader.read_chunk()
        self._metrics.got(edge, {}, size)
        found = checksum_of(self._memory[segment.offset : stop])
        if found != head["checksum"]:
            self._store.drop(segment)
            expected = head["checksum"]
            raise PeerLost(f"{item} came damaged from host {parent}: checksum {found:08x}, expected {expected:08x}")
        self._broadcasts.seal(edge, version, index, segment, contents, found)
        self._peers.act(parent, "receive.release", {"edge": edge, "version": version, "index": index})


def _record(data: Bytes) -> pa.RecordBatch:
    values = pa.Array.from_buffers(pa.uint8(), len(data), [None, pa.py_buffer(data)])
    return pa.RecordBatch.from_arrays([values], schema=SCHEMA)
