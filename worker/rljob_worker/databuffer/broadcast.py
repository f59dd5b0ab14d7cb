"""Broadcast edges: version-stamped, checksummed chunks relayed along a tree of hosts in a bounded window.

    source rank ─▶ arena of its host ─┬▶ ranks of the same host
                                      └▶ child hosts ─┬▶ their ranks
                                                      └▶ their children …

A chunk leaves a host's arena when all its ranks and children have it. While WINDOW_CHUNKS are held, or the arena is full,
nothing more is taken in, and that stops the host above: the slowest reader sets the pace, and memory stays bounded.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from rljob_worker.databuffer.faults import OutOfOrder
from rljob_worker.databuffer.fencing import Identity
from rljob_worker.databuffer.metrics import BufferMetrics
from rljob_worker.databuffer.peers import Peers
from rljob_worker.databuffer.routing import FAN_OUT, BroadcastRoute, Host, Worker, tree_children, tree_parent
from rljob_worker.databuffer.schema import numbers_of
from rljob_worker.databuffer.segment import Bytes, Contents
from rljob_worker.databuffer.store import Item, Reader, Segment, Store
from rljob_worker.databuffer.wire import POLL_SECONDS, Pending
from rljob_worker.errors import DeadlineExceeded, PeerLost, RLJobError

WINDOW_CHUNKS = 8
PIECE_BYTES = 4 << 20
REMEMBERED_VERSIONS = 8

SCHEMA = pa.schema([pa.field("bytes", pa.uint8(), nullable=False)])

Answer = dict[str, Any]


@dataclass(slots=True, eq=False)
class Version:
    """One version of one edge on this host."""

    number: int
    chunks: dict[int, Segment] = field(default_factory=dict)
    num_sealed: int = 0
    num_chunks: int | None = None
    """Known once the source has closed the version."""
    skipped: set[Reader] = field(default_factory=set)
    """Readers that want no more of it."""
    failure: RLJobError | None = None


class Broadcasts:
    """All broadcast edges of one host: `actions` for its workers and its parent, `stream` for its children."""

    def __init__(
        self,
        *,
        here: Host,
        routes: dict[str, BroadcastRoute],
        store: Store,
        memory: Bytes,
        peers: Peers,
        metrics: BufferMetrics,
        deadline_seconds: float,
        fan_out: int = FAN_OUT,
    ) -> None:
        self._here = here
        self._routes = routes
        self._store = store
        self._memory = memory
        self._peers = peers
        self._metrics = metrics
        self._deadline_seconds = deadline_seconds
        self._fan_out = fan_out
        self._versions: dict[str, dict[int, Version]] = {name: {} for name in routes}
        self._newest = dict.fromkeys(routes, -1)
        self._relays = ThreadPoolExecutor(max(4, 2 * len(routes) + fan_out), "relay")

    def actions(self) -> dict[str, Callable[[Identity, Answer], Answer | None]]:
        """Flight actions by name."""
        return {
            "send.open": lambda caller, body: self.open(body["edge"], body["version"]),
            "send.reserve": lambda caller, body: {"offset": self.reserve(**body).offset},
            "send.seal": lambda caller, body: self.seal(**body),
            "send.close": lambda caller, body: self.finish(**body),
            "announce": lambda caller, body: self.announced(body["edge"], body["version"]),
            "receive": lambda caller, body: self.receive(caller, **body),
            "receive.release": lambda caller, body: self.release(
                body["edge"], body["version"], body["index"], _who(caller)
            ),
            "receive.skip": lambda caller, body: self.skip(body["edge"], body["version"], _who(caller)),
        }

    def close(self) -> None:
        """Start no more work."""
        self._relays.shutdown(wait=False, cancel_futures=True)

    # ---- from the source's rank, or from the host above

    def open(self, edge: str, version: int) -> None:
        """A new version begins; tells the children. Raises OutOfOrder unless it is newer than all before."""
        with self._store.change():
            if version <= self._newest[edge]:
                raise OutOfOrder(f"version {version} of {edge} after version {self._newest[edge]}: versions only grow")
            self._newest[edge] = version
            versions = self._versions[edge]
            versions[version] = Version(version)
            for old in sorted(versions)[:-REMEMBERED_VERSIONS]:
                del versions[old]
        for child in self._children(edge):
            self._relays.submit(self._announce, child, edge, version)

    def reserve(self, edge: str, version: int, index: int, size: int, seconds: float, waited: float) -> Segment:
        """Room for the next chunk, within the window; raises Pending, or DeadlineExceeded naming the late readers."""
        item = Item(edge, version, "chunk", index)
        segment = self._store.wait(lambda: self._try_reserve(item, size), min(seconds, POLL_SECONDS))
        if segment is not None:
            return segment
        if seconds <= POLL_SECONDS or size > self._store.allocator.capacity:
            raise DeadlineExceeded(self._store.explain_full(item, size, waited))
        raise Pending

    def seal(self, edge: str, version: int, index: int, offset: int, contents: Answer, checksum: int) -> None:
        """A chunk is complete: local ranks and children may read it."""
        state, segment = self._state(edge, version), self._store.segment_at(offset)
        segment.contents, segment.checksum = Contents.from_json(contents), checksum
        readers = [Reader.rank(rank) for rank in self._routes[edge].readers(self._here)]
        readers += [Reader(str(child)) for child in self._children(edge)]
        self._metrics.put(edge, segment.contents.num_rows, segment.contents.num_bytes)
        with self._store.change():
            state.chunks[index] = segment
            state.num_sealed = index + 1
            self._store.set_readers(segment, [reader for reader in readers if reader not in state.skipped])

    def finish(self, edge: str, version: int, chunks: int) -> None:
        """The version is complete."""
        with self._store.change():
            self._state(edge, version).num_chunks = chunks

    # ---- for the ranks of this host

    def receive(self, caller: Identity, edge: str, version: int, index: int, seconds: float, waited: float) -> Answer:
        """The chunk, or the end of the version; raises Pending."""
        found = self._store.wait(lambda: self._chunk(edge, version, index), min(max(seconds, 0.0), POLL_SECONDS))
        if found is None and seconds <= 0:
            raise DeadlineExceeded(self._explain_late(edge, version, index, waited))
        if found is None:
            raise Pending
        if isinstance(found, RLJobError):
            raise found
        if isinstance(found, int):
            return {"end": found}
        assert found.contents is not None
        return {"offset": found.offset, "contents": found.contents.to_json()}

    def release(self, edge: str, version: int, index: int, reader: Reader) -> None:
        """One reader is done with one chunk."""
        with self._store.changed:
            state = self._versions[edge].get(version)
            segment = None if state is None else state.chunks.get(index)
        if segment is not None:
            self._store.release(segment, reader)

    def skip(self, edge: str, version: int, reader: Reader) -> None:
        """A reader wants no more of a version."""
        with self._store.change():
            state = self._versions[edge].get(version)
            if state is None:
                return
            state.skipped.add(reader)
            for segment in state.chunks.values():
                self._store.release(segment, reader)

    def drained(self, worker: Worker, seconds: float) -> bool:
        """Whether everything this worker sent has been read; waits for it."""
        mine = {name for name, route in self._routes.items() if route.source == worker}

        def done() -> bool | None:
            held = any(s.item.what == "chunk" and s.item.edge in mine for s in self._store.segments())
            return None if held else True

        return self._store.wait(done, seconds) is True

    # ---- for the hosts below

    def stream(
        self, edge: str, version: int, cancelled: Callable[[], bool]
    ) -> tuple[pa.Schema, Iterator[tuple[pa.RecordBatch, bytes]]]:
        """All chunks in order, as pieces; each waits until this host has it."""
        return SCHEMA, self._pieces(edge, version, cancelled)

    def _pieces(self, edge: str, version: int, cancelled: Callable[[], bool]) -> Iterator[tuple[pa.RecordBatch, bytes]]:
        index = 0
        while not cancelled():
            found = self._store.wait(lambda: self._chunk(edge, version, index), POLL_SECONDS)
            if found is None:
                continue
            if isinstance(found, RLJobError):
                raise found
            if isinstance(found, int):
                yield _record(self._memory[:0]), json.dumps({"end": found}).encode()
                return
            assert found.contents is not None
            head = {"index": index, "contents": found.contents.to_json(), "checksum": found.checksum}
            stop = found.offset + found.contents.num_bytes
            for start in range(found.offset, stop, PIECE_BYTES):
                yield _record(self._memory[start : min(start + PIECE_BYTES, stop)]), json.dumps(head).encode()
                head = {"index": index}
            index += 1

    # ---- relaying

    def announced(self, edge: str, version: int) -> None:
        """The host above has begun a version: begin it here and fetch it."""
        with self._store.changed:
            if version in self._versions[edge]:
                return  # the same message again
        self.open(edge, version)
        self._relays.submit(self._relay, edge, version)

    def _announce(self, child: Host, edge: str, version: int) -> None:
        try:
            self._peers.act(child, "announce", {"edge": edge, "version": version})
        except RLJobError as error:
            self._fail(edge, version, error)

    def _relay(self, edge: str, version: int) -> None:
        """Runs on a thread of its own; a failure ends in the version's state, where the ranks wait."""
        route = self._routes[edge]
        position = tree_parent(route.hosts.index(self._here), self._fan_out)
        assert position is not None
        parent = route.hosts[position]
        try:
            self._peers.attempt(parent, lambda client: self._fetch(client, parent, edge, version))
        except RLJobError as error:
            self._fail(edge, version, error)

    def _fetch(self, client: flight.FlightClient, parent: Host, edge: str, version: int) -> None:
        ticket = flight.Ticket(json.dumps({"edge": edge, "version": version}).encode())
        reader = client.do_get(ticket, flight.FlightCallOptions(timeout=self._deadline_seconds))
        self._metrics.got(edge, {}, 0)
        while True:
            piece = reader.read_chunk()
            head = json.loads(piece.app_metadata.to_pybytes())
            if "end" in head:
                self.finish(edge, version, head["end"])
                return
            self._take_chunk(reader, piece, head, parent, edge, version)

    def _take_chunk(self, reader: Any, piece: Any, head: Answer, parent: Host, edge: str, version: int) -> None:
        contents, item = Contents.from_json(head["contents"]), Item(edge, version, "chunk", head["index"])
        segment = self._reserve_now(item, contents.num_bytes)
        at, stop = segment.offset, segment.offset + contents.num_bytes
        while True:
            data = numbers_of(piece.data.column(0), "uint8")
            self._memory[at : at + len(data)] = data
            at += len(data)
            if at == stop:
                break
            piece = reader.read_chunk()
        self._metrics.got(edge, {}, contents.num_bytes)
        found = checksum_of(self._memory[segment.offset : stop])
        if found != head["checksum"]:
            self._store.drop(segment)
            raise PeerLost(
                f"{item} came damaged from host {parent}: checksum {found:08x}, expected {head['checksum']:08x}"
            )
        self.seal(edge, version, item.number, segment.offset, head["contents"], found)
        body = {"edge": edge, "version": version, "index": item.number}
        self._peers.act(parent, "receive.release", body)

    def _reserve_now(self, item: Item, size: int) -> Segment:
        segment = self._store.wait(lambda: self._try_reserve(item, size), self._deadline_seconds)
        if segment is None:
            raise DeadlineExceeded(self._store.explain_full(item, size, self._deadline_seconds))
        return segment

    # ---- state

    def _try_reserve(self, item: Item, size: int) -> Segment | None:
        held = sum(s.item.edge == item.edge and s.item.what == "chunk" for s in self._store.segments())
        return self._store.try_reserve(item, size) if held < WINDOW_CHUNKS else None

    def _chunk(self, edge: str, version: int, index: int) -> Segment | int | RLJobError | None:
        """The chunk, the number of chunks when there are no more, an error, or None for not yet."""
        state = self._versions[edge].get(version)
        if state is None:
            if version <= self._newest[edge]:
                return OutOfOrder(f"version {version} of {edge} is over: version {self._newest[edge]} is here")
            return None
        if state.failure is not None:
            return state.failure
        if index < state.num_sealed:
            return state.chunks[index]
        return state.num_chunks

    def _state(self, edge: str, version: int) -> Version:
        return self._versions[edge][version]

    def _fail(self, edge: str, version: int, error: RLJobError) -> None:
        with self._store.change():
            state = self._versions[edge].get(version)
            if state is not None and state.failure is None:
                state.failure = error

    def _children(self, edge: str) -> Sequence[Host]:
        hosts = self._routes[edge].hosts
        return [hosts[child] for child in tree_children(hosts.index(self._here), len(hosts), self._fan_out)]

    def _explain_late(self, edge: str, version: int, index: int, seconds: float) -> str:
        route = self._routes[edge]
        source, root = route.source, route.root
        try:
            body = {"group": root.group, "host": root.index, "rank": source.rank}
            said = self._peers.act(root, "status", body, seconds=5.0, window_seconds=2.0).get(str(source.rank))
        except RLJobError as error:
            said = error
        return (
            f"waited {seconds:.0f} s for chunk {index} of {edge}, version {version}, from {source} (host {root}), "
            f"which last said: {said or 'nothing'}"
        )


def checksum_of(data: Bytes) -> int:
    """CRC-32 of a chunk; about 6 GB/s."""
    return zlib.crc32(data)


def _who(caller: Identity) -> Reader:
    return Reader.rank(caller.rank) if caller.rank >= 0 else Reader(str(caller.pod))


def _record(data: Bytes) -> pa.RecordBatch:
    values = pa.Array.from_buffers(pa.uint8(), len(data), [None, pa.py_buffer(data)])
    return pa.RecordBatch.from_arrays([values], schema=SCHEMA)
