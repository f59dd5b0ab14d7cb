"""What a data buffer answers: every Flight action by its name, and the streams. No state of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from rljob_worker.databuffer import relay
from rljob_worker.databuffer.broadcast import Broadcasts
from rljob_worker.databuffer.exchange import Exchange
from rljob_worker.databuffer.fencing import Identity
from rljob_worker.databuffer.hosts import Host
from rljob_worker.databuffer.metrics import BufferMetrics
from rljob_worker.databuffer.peers import Peers
from rljob_worker.databuffer.posts import Posts
from rljob_worker.databuffer.relay import Relay
from rljob_worker.databuffer.routing import Routes
from rljob_worker.databuffer.rows import stream
from rljob_worker.databuffer.rows.segment import Contents
from rljob_worker.databuffer.store import Item, Reader, Segment, Store
from rljob_worker.databuffer.wire import POLL_SECONDS, Pending, decode_layout
from rljob_worker.errors import DeadlineExceeded, PeerLost, RLJobError

PROBE_SECONDS = 2.0

Answer = dict[str, Any]
Messages = Iterator[tuple[pa.RecordBatch, bytes]]


@dataclass(frozen=True, slots=True)
class Service:
    """Everything a data buffer consists of, and the actions over it."""

    here: Host
    routes: Routes
    store: Store
    exchange: Exchange
    broadcasts: Broadcasts
    relay: Relay
    peers: Peers
    posts: Posts
    metrics: BufferMetrics
    arena: Path
    deadline_seconds: float

    @property
    def life(self) -> str:
        """Tells this process from one before or after it: the arena's name is chosen anew by each."""
        return self.arena.name

    def act(self, caller: Identity, name: str, body: bytes) -> Answer | None:
        """One action. Raises Pending, or an error of ours."""
        if name == "layout":
            self._layout(body)
            return None
        return _ACTIONS[name](self, caller, json.loads(body))

    def stream(self, ticket: bytes, cancelled: Callable[[], bool]) -> tuple[pa.Schema, Messages]:
        """Rows of a share, or chunks of a broadcast."""
        asked = json.loads(ticket)
        edge = asked["edge"]
        if "version" in asked:
            return relay.SCHEMA, self.relay.stream(edge, asked["version"], asked["first"], cancelled)
        selections = self.exchange.rows(edge, asked["step"], asked["share"], asked["parts"], asked["wait_seconds"])
        return stream.stream(selections, lambda seconds: self.metrics.gathered(edge, seconds), asked["chunk_bytes"])

    # ---- about workers

    def _hello(self, caller: Identity, body: Answer) -> Answer:
        """What a client must know: the arena, and its own part in every edge."""
        worker = caller.worker
        edges = {
            name: {
                "columns": None if route.columns is None else list(route.columns),
                "part": route.part_of(worker),
                "share": route.share_of(worker),
            }
            for name, route in self.routes.rows.items()
        }
        return {
            "arena": str(self.arena),
            "capacity": self.store.allocator.capacity,
            "life": self.life,
            "edges": edges,
            "broadcasts": list(self.routes.broadcasts),
            "deadline_seconds": self.deadline_seconds,
        }

    def _post(self, caller: Identity, body: Answer) -> None:
        self.posts.post(caller.rank, body)

    def _status(self, caller: Identity, body: Answer) -> Answer:
        host = Host(body["group"], body["host"])
        if host != self.here:
            return self._status_of_peer(host, body)
        ranks = self.posts.ranks() if body["rank"] is None else [body["rank"]]
        return {str(rank): self.posts.status(rank) for rank in ranks}

    def _status_of_peer(self, host: Host, body: Answer) -> Answer:
        """Empty while the peer has not started; PeerLost only once that has lasted too long."""
        try:
            answer: Answer = self.peers.act(host, "status", body, seconds=5.0, window_seconds=0.0)
            return answer
        except PeerLost:
            self.peers.check(host)
            return {}

    # ---- rows

    def _reserve(self, caller: Identity, body: Answer) -> Answer:
        segment = self.exchange.reserve(caller.worker, body["edge"], body["step"], body["bytes"], body["seconds"])
        return {"offset": segment.offset}

    def _seal(self, caller: Identity, body: Answer) -> None:
        self.exchange.seal(body["offset"], Contents.from_json(body["contents"]))

    def _get(self, caller: Identity, body: Answer) -> Answer:
        segment, timing = self.exchange.get(caller.worker, body["edge"], body["step"], body["seconds"])
        return {**_where(segment), "timing": timing}

    def _release(self, caller: Identity, body: Answer) -> None:
        if "share" in body:
            self.exchange.acknowledge(body["edge"], body["step"], body["share"], body["parts"], body["host"])
        else:
            self.exchange.release(caller.worker, body["edge"], body["step"])

    def _missing(self, caller: Identity, body: Answer) -> Answer:
        return dict(self.exchange.lateness.missing(body["edge"], body["step"], body["parts"]))

    def _layout(self, body: bytes) -> None:
        head, layout = decode_layout(body)
        if head["position"] < 0:
            self.exchange.layouts.complete(head["edge"], head["step"], layout)
        else:
            self.exchange.layouts.from_child(head["edge"], head["step"], head["position"], layout)

    def _drain(self, caller: Identity, body: Answer) -> Answer:
        seconds = min(max(body["seconds"], 0.0), POLL_SECONDS)
        if self.exchange.drained(caller.worker, seconds) and self.broadcasts.drained(caller.worker, seconds):
            return {}
        if body["seconds"] <= 0:
            raise self.exchange.late_readers(caller.worker, body["waited"])
        raise Pending

    # ---- broadcasts

    def _send_open(self, caller: Identity, body: Answer) -> None:
        self.relay.begin(body["edge"], body["version"])

    def _send_reserve(self, caller: Identity, body: Answer) -> Answer:
        edge, version, index, num_bytes = body["edge"], body["version"], body["index"], body["bytes"]
        segment = self.broadcasts.reserve(edge, version, index, num_bytes, min(body["seconds"], POLL_SECONDS))
        if segment is not None:
            return {"offset": segment.offset}
        if body["seconds"] > POLL_SECONDS:
            raise Pending
        item = Item(edge, version, "chunk", index)
        raise DeadlineExceeded(self.broadcasts.explain_full(item, num_bytes, body["waited"] + body["seconds"]))

    def _send_seal(self, caller: Identity, body: Answer) -> None:
        segment, contents = self.store.segment_at(body["offset"]), Contents.from_json(body["contents"])
        self.metrics.put(body["edge"], contents.num_rows, contents.num_bytes)
        self.broadcasts.seal(body["edge"], body["version"], body["index"], segment, contents, body["checksum"])

    def _send_close(self, caller: Identity, body: Answer) -> None:
        self.broadcasts.finish(body["edge"], body["version"], body["chunks"])

    def _announce(self, caller: Identity, body: Answer) -> None:
        self.relay.announced(body["edge"], body["version"])

    def _receive(self, caller: Identity, body: Answer) -> Answer:
        edge, version, index = body["edge"], body["version"], body["index"]
        found = self.broadcasts.chunk(edge, version, index, min(max(body["seconds"], 0.0), POLL_SECONDS))
        if isinstance(found, int):
            return {"end": found}
        if found is not None:
            return _where(found)
        if body["seconds"] <= 0:
            raise self._late_source(edge, version, index, body["waited"])
        if body["waited"] > PROBE_SECONDS and self.routes.broadcasts[edge].root != self.here:
            self.peers.check(self.broadcasts.parent(edge))  # nobody else would notice that it is gone
        raise Pending

    def _receive_release(self, caller: Identity, body: Answer) -> None:
        self.broadcasts.release(body["edge"], body["version"], body["index"], _reader(caller))

    def _receive_skip(self, caller: Identity, body: Answer) -> None:
        self.broadcasts.skip(body["edge"], body["version"], _reader(caller))

    def _late_source(self, edge: str, version: int, index: int, seconds: float) -> DeadlineExceeded:
        route = self.routes.broadcasts[edge]
        try:
            status = {"group": route.root.group, "host": route.root.index, "rank": route.source.rank}
            said: object = (
                self.posts.last_words(route.source.rank)
                if route.root == self.here
                else self.peers.act(route.root, "status", status, seconds=5.0, window_seconds=1.0)
            )
        except RLJobError as error:
            said = error
        return DeadlineExceeded(
            f"waited {seconds:.1f} s for chunk {index} of {edge}, version {version}, from {route.source} (host "
            f"{route.root}), which last said: {said}"
        )


def _where(segment: Segment) -> Answer:
    assert segment.contents is not None
    return {"offset": segment.offset, "contents": segment.contents.to_json()}


def _reader(caller: Identity) -> Reader:
    return Reader.rank(caller.rank) if caller.rank >= 0 else Reader(str(caller.pod))


_ACTIONS: dict[str, Callable[[Service, Identity, Answer], Answer | None]] = {
    "ping": lambda service, caller, body: None,
    "hello": Service._hello,
    "post": Service._post,
    "status": Service._status,
    "reserve": Service._reserve,
    "seal": Service._seal,
    "get": Service._get,
    "release": Service._release,
    "missing": Service._missing,
    "drain": Service._drain,
    "send.open": Service._send_open,
    "send.reserve": Service._send_reserve,
    "send.seal": Service._send_seal,
    "send.close": Service._send_close,
    "announce": Service._announce,
    "receive": Service._receive,
    "receive.release": Service._receive_release,
    "receive.skip": Service._receive_skip,
}
