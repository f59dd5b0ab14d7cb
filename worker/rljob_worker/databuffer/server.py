"""The Flight service of a data buffer: the same for peers over TCP and for its own workers over a UNIX socket."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from rljob_worker.databuffer import rows
from rljob_worker.databuffer.broadcast import Broadcasts
from rljob_worker.databuffer.exchange import Exchange
from rljob_worker.databuffer.faults import pending, to_flight
from rljob_worker.databuffer.fencing import MIDDLEWARE, Caller, Fence, Identity
from rljob_worker.databuffer.metrics import BufferMetrics
from rljob_worker.databuffer.peers import Peers
from rljob_worker.databuffer.posts import Posts
from rljob_worker.databuffer.routing import Host, Routes
from rljob_worker.databuffer.segment import Contents
from rljob_worker.databuffer.store import Store
from rljob_worker.databuffer.wire import Pending, decode_layout
from rljob_worker.errors import RLJobError

Answer = dict[str, Any]


class Service:
    """Every action by name; knows the parts, holds no state of its own."""

    def __init__(
        self,
        *,
        here: Host,
        routes: Routes,
        store: Store,
        exchange: Exchange,
        broadcasts: Broadcasts,
        peers: Peers,
        posts: Posts,
        metrics: BufferMetrics,
        arena: Path,
        deadline_seconds: float,
    ) -> None:
        self._here, self._routes, self._store = here, routes, store
        self._exchange, self._broadcasts, self._peers, self._posts = exchange, broadcasts, peers, posts
        self._metrics, self._arena, self._deadline_seconds = metrics, arena, deadline_seconds
        self._actions: dict[str, Callable[[Identity, Answer], Answer | None]] = {
            "ping": lambda caller, body: None,
            "hello": self._hello,
            "reserve": self._reserve,
            "seal": self._seal,
            "get": self._get,
            "release": self._release,
            "missing": self._missing,
            "post": self._post,
            "status": self._status,
            "drain": self._drain,
            **broadcasts.actions(),
        }

    def act(self, caller: Identity, name: str, body: bytes) -> Answer | None:
        """One action. Raises Pending, or an error of ours."""
        if name == "layout":
            return self._layout(body)
        if name not in self._actions:
            raise KeyError(f"no action {name!r}")
        return self._actions[name](caller, json.loads(body))

    def stream(
        self, ticket: bytes, cancelled: Callable[[], bool]
    ) -> tuple[pa.Schema, Iterator[tuple[pa.RecordBatch, bytes]]]:
        """Rows of a share, or chunks of a broadcast."""
        asked = json.loads(ticket)
        if "version" in asked:
            return self._broadcasts.stream(asked["edge"], asked["version"], cancelled)
        edge = asked["edge"]
        selections = self._exchange.rows(edge, asked["step"], asked["share"], asked["parts"], asked["wait"])
        return rows.stream(selections, lambda seconds: self._metrics.gathered(edge, seconds))

    def _hello(self, caller: Identity, body: Answer) -> Answer:
        """What a client must know: the arena, and its own part in every edge."""
        worker = caller.worker
        edges = {
            name: {
                "columns": None if route.columns is None else list(route.columns),
                "part": route.part_of(worker),
                "share": route.share_of(worker),
            }
            for name, route in self._routes.rows.items()
        }
        broadcasts = {
            name: {"source": route.source == worker, "reads": worker.rank in route.readers(self._here)}
            for name, route in self._routes.broadcasts.items()
        }
        return {
            "arena": str(self._arena),
            "capacity": self._store.allocator.capacity,
            "edges": edges,
            "broadcasts": broadcasts,
            "deadline_seconds": self._deadline_seconds,
        }

    def _reserve(self, caller: Identity, body: Answer) -> Answer:
        segment = self._exchange.reserve(caller.worker, body["edge"], body["step"], body["bytes"], body["seconds"])
        return {"offset": segment.offset}

    def _seal(self, caller: Identity, body: Answer) -> None:
        self._exchange.seal(body["offset"], Contents.from_json(body["contents"]))

    def _get(self, caller: Identity, body: Answer) -> Answer:
        segment, timing = self._exchange.get(caller.worker, body["edge"], body["step"], body["seconds"])
        assert segment.contents is not None
        return {"offset": segment.offset, "contents": segment.contents.to_json(), "timing": timing}

    def _release(self, caller: Identity, body: Answer) -> None:
        if "share" in body:
            self._exchange.acknowledge(body["edge"], body["step"], body["share"], body["parts"], body["host"])
        else:
            self._exchange.release(caller.worker, body["edge"], body["step"])

    def _missing(self, caller: Identity, body: Answer) -> Answer:
        return dict(self._exchange.describe_missing(body["edge"], body["step"], body["parts"]))

    def _post(self, caller: Identity, body: Answer) -> None:
        self._posts.post(caller.rank, body)

    def _status(self, caller: Identity, body: Answer) -> Answer:
        host = Host(body["group"], body["host"])
        if host != self._here:
            answer: Answer = self._peers.act(host, "status", body)
            return answer
        ranks = self._posts.ranks() if body["rank"] is None else [body["rank"]]
        return {str(rank): self._posts.status(rank) for rank in ranks}

    def _drain(self, caller: Identity, body: Answer) -> Answer:
        done = self._exchange.drained(caller.worker, 1.0) and self._broadcasts.drained(caller.worker, 1.0)
        if not done and body["seconds"] <= 0:
            raise self._exchange.late_readers(caller.worker, body["waited"])
        if not done:
            raise Pending
        return {}

    def _layout(self, body: bytes) -> None:
        head, layout = decode_layout(body)
        if head["position"] < 0:
            self._exchange.layout_complete(head["edge"], head["step"], layout)
        else:
            self._exchange.layout_from_child(head["edge"], head["step"], head["position"], layout)


class FlightServer(flight.FlightServerBase):  # type: ignore[misc]
    """Flight's shell around the service; errors of ours keep their names."""

    def __init__(self, location: str, service: Service, ours: Identity) -> None:
        self._service = service
        super().__init__(location, middleware={MIDDLEWARE: Fence(ours)})

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[pa.Buffer]:
        caller: Caller = context.get_middleware(MIDDLEWARE)
        try:
            answer = self._service.act(caller.identity, action.type, action.body.to_pybytes())
        except Pending:
            raise pending() from None
        except RLJobError as error:
            raise to_flight(error) from error
        return [pa.py_buffer(json.dumps(answer or {}).encode())]

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        try:
            schema, messages = self._service.stream(ticket.ticket, context.is_cancelled)
        except Pending:
            raise pending() from None
        except RLJobError as error:
            raise to_flight(error) from error
        return flight.GeneratorStream(schema, messages)
