"""Weights that pass through this host: what its workers and its peers say, under the data buffer's lock.

Nothing waits here but the workers' own calls. Peers are notified through links, bytes are fetched by jobs that can run
at once: what a parent has offered lies in its arena until we say that we have it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from rljob_worker.databuffer.links.links import Links
from rljob_worker.databuffer.protocol.peer_side import ChunkTicket, WeightsMessage
from rljob_worker.databuffer.protocol.worker_answers import (
    ChunkLocation,
    Complete,
    Done,
    NotYet,
    Reservation,
    WorkerReply,
)
from rljob_worker.databuffer.protocol.worker_calls import (
    HELD_SECONDS,
    CloseVersion,
    NextChunk,
    OpenVersion,
    ReleaseChunk,
    ReleaseVersion,
    ReserveChunk,
    SealChunk,
    SkipVersion,
    WaitingCall,
)
from rljob_worker.databuffer.routes.hosts import Host, WorkerId
from rljob_worker.databuffer.routes.weights_route import SourceRank, WeightsRoutes
from rljob_worker.databuffer.rows.byte_stream import Bytes
from rljob_worker.databuffer.store.monitor import Monitor
from rljob_worker.databuffer.weights import tree
from rljob_worker.databuffer.weights.arrivals import Arrivals
from rljob_worker.databuffer.weights.chunk import WeightsChunk as HeldChunk
from rljob_worker.databuffer.weights.edge import Edge
from rljob_worker.databuffer.work import Timer, Work
from rljob_worker.errors import DeadlineExceeded, PeerLost

MAX_NAMED = 3
"""Sources that a message names."""


class Counts(Protocol):
    """The figures of what is sent here, and of good bytes that come from other hosts."""

    def put(self, edge: str, rows: int, num_bytes: int) -> None: ...

    def got(self, edge: str, timing: Mapping[str, float], remote_bytes: int) -> None: ...


LastWords = Callable[[WorkerId, Host], str]
"""What a worker of a host last said it was doing, for messages; asked without the lock."""


class Weights:
    """All edges of weights on one host; calls may come from any thread."""

    def __init__(
        self,
        here: Host,
        routes: WeightsRoutes,
        memory: Bytes,
        *,
        monitor: Monitor,
        links: Links,
        jobs: Work,
        later: Timer,
        last_words: LastWords,
        metrics: Counts,
        retry_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        first_slot: int = 0,
        held_seconds: float = HELD_SECONDS,
    ) -> None:
        """memory: the arena, in which this host's slots (`routes.num_bytes(here)`) begin at byte `first_slot`.
        retry_seconds: how long a host that has a chunk may not give it."""
        self._here = here
        self._monitor = monitor
        self._links = links
        self._last_words = last_words
        self._held_seconds = held_seconds
        self._arrivals = Arrivals(memory, links, jobs, later, self._arrived, retry_seconds=retry_seconds, clock=clock)
        slots = routes.slots(here, first_slot)
        self._edges = {name: Edge(here, route, slots) for name, route in routes.by_edge.items()}
        self._metrics = metrics

    @property
    def names(self) -> frozenset[str]:
        """Edges of the job."""
        return frozenset(self._edges)

    # ---- peers

    def announced(self, sender: Host, message: WeightsMessage) -> None:
        """A message of a peer. Raises PeerLost when it makes no sense."""
        with self._monitor.change():
            self._do(self.edge(message.edge).announced(sender, message))

    def forget(self, guest: Host) -> None:
        """A guest is gone: nothing is kept for it any more."""
        with self._monitor.change():
            for edge in self._edges.values():
                self._do(edge.forget(guest))

    def offered(self, ticket: ChunkTicket) -> Bytes:
        """The bytes of a chunk that a child was offered, in the arena. Raises PeerLost when it is not there."""
        with self._monitor.look():
            chunk = self.edge(ticket.edge).tree(ticket.source).find(ticket.version, ticket.index)
            if chunk is None:
                raise PeerLost(f"host {self._here} does not hold {ticket}")
            return self._arrivals.slot(chunk)

    # ---- workers that send

    def open(self, worker: WorkerId, request: OpenVersion) -> WorkerReply:
        """Raises OutOfOrder unless the version is newer than all before, and fewer are held than the plan has."""
        edge, source = self._sent_by(worker, request.edge)
        with self._monitor.change():
            edge.tree(source.number).open(request.version)
        return Done()

    def reserve(self, worker: WorkerId, request: ReserveChunk) -> WorkerReply:
        """`Reservation` for a chunk, or `NotYet`. DeadlineExceeded names who keeps the slots."""
        edge, source = self._sent_by(worker, request.edge)
        offset = self._monitor.wait(edge.tree(source.number).reserve, self._timeouts(request))
        if offset is not None:
            return Reservation(offset=offset)
        if request.waited < request.seconds:
            return NotYet()
        with self._monitor.look():
            held = "; ".join(edge.explain([source.number]))
        what = f"a slot of {request.edge}, version {request.version}"
        raise DeadlineExceeded(f"{worker} waited {request.waited:.1f} s for {what}: {held}")

    def seal(self, worker: WorkerId, request: SealChunk) -> WorkerReply:
        """A slot that was reserved is a chunk now."""
        edge, source = self._sent_by(worker, request.edge)
        self._metrics.put(request.edge, 0, request.num_bytes)
        with self._monitor.change():
            self._do(edge.seal(source.number, request.offset, request.num_bytes, request.table, request.checksum))
        return Done()

    def close(self, worker: WorkerId, request: CloseVersion) -> WorkerReply:
        """The source has sealed all its chunks of its version."""
        edge, source = self._sent_by(worker, request.edge)
        with self._monitor.change():
            self._do(edge.close(source.number))
        return Done()

    def release_version(self, worker: WorkerId, request: ReleaseVersion) -> WorkerReply:
        """Nobody will ask the source for a version any more."""
        edge, source = self._sent_by(worker, request.edge)
        with self._monitor.change():
            edge.release_version(source.number, request.version)
        return Done()

    def is_drained(self, worker: WorkerId) -> bool:
        """Whether the hosts below have everything that a worker sent; under the lock."""
        return not self.readers(worker)

    def readers(self, worker: WorkerId) -> set[Host]:
        """Hosts that have still to copy what a worker sent; under the lock."""
        sent = [(edge, edge.route.source_of(worker)) for edge in self._edges.values()]
        trees = [edge.tree(source.number) for edge, source in sent if source is not None]
        return {child for tree in trees for chunk in tree.chunks for child in chunk.children}

    @property
    def used_bytes(self) -> int:
        """Bytes of slots that are not free; under the lock."""
        return sum(edge.used_bytes for edge in self._edges.values())

    # ---- workers that receive

    def next(self, worker: WorkerId, request: NextChunk) -> WorkerReply:
        """A `Chunk` that the worker has not had, `Complete`, or `NotYet`. DeadlineExceeded names the late sources."""
        edge = self.edge(request.edge)
        with self._monitor.change():
            self._do(edge.begins(worker.rank, request.version))
        answer = self._monitor.wait(lambda: self._give(edge, worker.rank, request.version), self._timeouts(request))
        if answer is not None:
            return answer
        if request.waited < request.seconds:
            return NotYet()
        raise DeadlineExceeded(self._explain_late(edge, worker, request))

    def release(self, worker: WorkerId, request: ReleaseChunk) -> WorkerReply:
        """The worker has copied a chunk."""
        with self._monitor.change():
            edge = self.edge(request.edge)
            self._do(edge.released(worker.rank, request.source, request.version, request.index))
        return Done()

    def skip(self, worker: WorkerId, request: SkipVersion) -> WorkerReply:
        """The worker wants no more of a version, nor of older ones."""
        with self._monitor.change():
            self._do(self.edge(request.edge).skip(worker.rank, request.version))
        return Done()

    # ---- how

    def edge(self, name: str) -> Edge:
        """Its state, to be looked at under the lock. Raises PeerLost for a name that is none."""
        if name not in self._edges:
            raise PeerLost(f"there are no weights {name!r} in this job")
        return self._edges[name]

    def _sent_by(self, worker: WorkerId, name: str) -> tuple[Edge, SourceRank]:
        edge = self.edge(name)
        source = edge.route.source_of(worker)
        assert source is not None, f"{worker} is not a source of {name}"
        return edge, source

    def _do(self, effects: Iterable[tree.Effect]) -> None:
        """Under the lock: messages leave in the order of what happened."""
        for effect in effects:
            if isinstance(effect, tree.Send):
                self._links.send(effect.host, effect.message)
            else:
                self._arrivals.begin(effect)

    def _arrived(self, chunk: HeldChunk) -> None:
        self._metrics.got(chunk.offer.edge, {}, chunk.offer.num_bytes)
        with self._monitor.change():
            self._do(self.edge(chunk.offer.edge).good(chunk))

    def _give(self, edge: Edge, rank: int, version: int) -> WorkerReply | None:
        """Under the lock."""
        result = edge.next(rank, version)
        if isinstance(result, int):
            self._do(edge.skip(rank, version))
            return Complete(num_chunks=result)
        if result is None:
            return None
        edge.give(rank, result)
        offer = result.offer
        return ChunkLocation(
            source=offer.source, index=offer.index, offset=result.offset, num_bytes=offer.num_bytes, table=offer.table
        )

    def _timeouts(self, request: WaitingCall) -> float:
        return max(0.0, min(self._held_seconds, request.seconds - request.waited))

    def _explain_late(self, edge: Edge, worker: WorkerId, request: NextChunk) -> str:
        with self._monitor.look():
            late = edge.late_sources(request.version)
            held = edge.explain()
        words = [
            f"{source.worker} (host {source.host}) {self._last_words(source.worker, source.host)}"
            for source in late[:MAX_NAMED]
        ]
        return (
            f"{worker} (host {self._here}) waited {request.waited:.1f} s for {request.edge}, version "
            f"{request.version}: {len(late)} of {len(edge.route.sources)} sources have not sent all of it; "
            f"{'; '.join([*words, *held])}"
        )
