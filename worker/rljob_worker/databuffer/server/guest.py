"""The data buffer of a guest: a host of an elastic group, which takes leases and is in no tree.

It speaks with the owners of leases and the hosts of weights' sources, whose loss ends it, and with other guests, whose
loss is an event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from rljob_api.planning.plan import Plan
from rljob_worker.databuffer.leases.guest import GuestLeases
from rljob_worker.databuffer.links.faults import error_from
from rljob_worker.databuffer.links.fencing import Identity
from rljob_worker.databuffer.links.links import Links, LinkSettings
from rljob_worker.databuffer.protocol import peer_side as peers
from rljob_worker.databuffer.protocol import worker_answers as say
from rljob_worker.databuffer.protocol import worker_calls as ask
from rljob_worker.databuffer.protocol.errors import Away, Bug, require
from rljob_worker.databuffer.pull.edges import Edges
from rljob_worker.databuffer.routes.guest_route import GuestRoute, longest_wait_seconds
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.routes.weights_route import WeightsRoutes
from rljob_worker.databuffer.rows.byte_stream import Bytes, stream_of
from rljob_worker.databuffer.server.metrics import BufferMetrics
from rljob_worker.databuffer.server.readers import ReadableParts
from rljob_worker.databuffer.server.stragglers import WorkerStatuses
from rljob_worker.databuffer.store.monitor import Monitor
from rljob_worker.databuffer.store.segment_files import SegmentFile
from rljob_worker.databuffer.store.segments import Segments
from rljob_worker.databuffer.weights.guest import GuestWeights
from rljob_worker.databuffer.work import Timer, Work
from rljob_worker.errors import DeadlineExceeded, PeerLost, RLJobError

NUM_STREAM_THREADS = 16


class GuestBuffer:
    """State under one lock, pools and links; answers peers, and workers by `GuestSide`."""

    def __init__(
        self,
        plan: Plan,
        places: Sequence[SegmentFile],
        memory: Bytes,
        metrics: BufferMetrics,
        settings: LinkSettings,
    ) -> None:
        route, group, threads = GuestRoute.of(plan), plan.elastic_group, settings.threads
        assert route is not None and group is not None, "the job has guests"
        self.plan, self.here, self.places = plan, settings.identity.pod, places
        self.life = places[0].path.name
        self.monitor, self.worker_statuses = Monitor(threads), WorkerStatuses(threads.clock)
        self._timer = Timer(self.break_down, threads)
        self._streams = Work("stream", NUM_STREAM_THREADS, self.break_down, threads)
        self.links = Links(
            settings,
            life=self.life,
            hears=lambda sender, message: _HEARS[type(message)](self, sender, message),
            lost=lambda host, error: self.break_down(error),
            fails=self.break_down,
            timer=self._timer,
            is_guest=route.is_guest,
            guest_lost=lambda host, error: self.weights.lose(host),
            guest_ping_seconds=route.ping_seconds,
        )
        self.weights_routes = WeightsRoutes.of(plan)
        weights_bytes = self.weights_routes.num_bytes(self.here)
        self.segments = Segments.of(places, weights_bytes, threads.clock, metrics.spilled)
        self.leases = GuestLeases(
            self.here, route, group.workers_per_host, self.segments, memory, monitor=self.monitor, links=self.links
        )
        self.weights = GuestWeights(
            self.here,
            self.leases.home,
            self.weights_routes.by_edge,
            self.weights_routes.slots(self.here, self.segments.memory.capacity),
            memory,
            monitor=self.monitor,
            links=self.links,
            streams=self._streams,
            later=self._timer.after,
            retry_seconds=settings.retry_seconds,
            clock=threads.clock,
        )
        self.readers = ReadableParts(Edges({}, self.here, plan.staleness + 2), self.monitor)
        metrics.watch("rows", self._used_rows, self.segments.memory.capacity)
        metrics.watch("weights", self._used_weights, weights_bytes)

    def start(self) -> None:
        """Once the servers are up."""
        self.leases.start()

    def close(self) -> None:
        """Tell everybody we spoke with that we end; start no more work."""
        for host in self.links.peers:
            self.links.send(host, peers.Departure())
        self.links.flush(0.5)
        self.monitor.break_down(Away("this data buffer is shutting down"))
        for part in (self._streams, self._timer, self.links):
            part.close()

    def break_down(self, cause: RLJobError) -> None:
        """This guest cannot go on, which is nobody else's matter: the first cause answers every request."""
        self.monitor.break_down(PeerLost(*cause.args) if isinstance(cause, Away) else cause)

    # ---- peers

    def take(self, sender: Host, life: str, envelope: peers.Envelope) -> str:
        """Messages of a peer; what broke this guest is its own matter, so that others hear of a lost peer only."""
        own_life = self.links.take(sender, life, envelope)
        if self.monitor.cause is not None:
            raise PeerLost(f"host {self.here} cannot go on: {self.monitor.cause}")
        return own_life

    def answer(self, question: peers.Question) -> peers.PeerAnswer:
        """What workers of this host said last, for error messages."""
        if isinstance(question, peers.WhatDoTheyDo):
            return {str(rank): self.worker_statuses.last_words(rank) for rank in self.worker_statuses.ranks()}
        return {str(rank): self.worker_statuses.status(rank) for rank in self.worker_statuses.ranks()}

    def stream(self, ticket: peers.Ticket) -> peers.RecordStream:
        """Rows of a lease, or a chunk of weights."""
        require(not isinstance(ticket, peers.RowsTicket), f"host {self.here} puts no rows")
        if isinstance(ticket, peers.LeaseTicket):
            return stream_of(self.leases.rows(ticket))
        assert isinstance(ticket, peers.ChunkTicket)
        return stream_of(self.weights.offered(ticket))

    def _broken(self, sender: Host, message: peers.Broken) -> None:
        if not self.links.is_guest(sender):
            self.break_down(error_from(message))

    def _left(self, sender: Host, message: peers.Departure) -> None:
        self.links.peer_leaves(sender, lambda: self.weights.lose(sender))
        if not self.links.is_guest(sender):
            self.leases.owner_left(sender)

    def _used_rows(self) -> int:
        with self.monitor.look():
            return self.segments.memory.used

    def _used_weights(self) -> int:
        with self.monitor.look():
            return self.weights.used_bytes


class GuestSide:
    """What a guest's data buffer answers its workers, every request by its type."""

    def __init__(self, buffer: GuestBuffer) -> None:
        self._buffer = buffer

    def __call__(self, caller: Identity, request: ask.WorkerRequest) -> say.WorkerAnswer:
        try:
            require(type(request) in _ANSWERS, f"{type(request).__name__} is nothing that a guest is asked")
            if not isinstance(request, (ask.Drain, ask.NextChunk)):
                self._buffer.monitor.check()
            result: say.WorkerAnswer = _ANSWERS[type(request)](self, caller, request)
            return result
        except RLJobError:
            raise
        except Exception as error:
            bug = Bug(f"{type(request).__name__} of {caller.worker}: {error!r}")
            self._buffer.break_down(bug)
            raise bug from error

    def _hello(self, caller: Identity, request: ask.WorkerHello) -> say.Welcome:
        buffer = self._buffer
        return say.Welcome(
            places=[(str(place.path), place.num_bytes) for place in buffer.places],
            life=buffer.life,
            edges={},
            weights=buffer.weights_routes.of_worker(caller.worker, buffer.here),
            deadline_seconds=longest_wait_seconds(buffer.plan),
        )

    def _set_status(self, caller: Identity, request: ask.SetStatus) -> say.Done:
        self._buffer.worker_statuses.set(caller.rank, request.status)
        return say.Done()

    def _ask_status(self, caller: Identity, request: ask.AskStatus) -> say.Statuses:
        statuses, here = self._buffer.worker_statuses, self._buffer.here
        require(Host(request.group, request.host) == here, f"host {here} knows its own workers only")
        return say.Statuses(by_rank={rank: statuses.status(rank) for rank in statuses.ranks()})

    # ---- leases

    def _request_lease(self, caller: Identity, request: ask.RequestLease) -> say.GuestLease | say.NotYet:
        """Not bounded: a guest waits for as long as the gang is there, which the link to it knows."""
        buffer, worker = self._buffer, caller.worker
        buffer.leases.ask(worker)
        answer = buffer.monitor.wait(lambda: buffer.leases.granted(worker), request.held_seconds)
        return say.NotYet() if answer is None else answer

    def _reserve_lease(self, caller: Identity, request: ask.ReserveLease) -> say.Reservation | say.NotYet:
        buffer, worker = self._buffer, caller.worker

        def room() -> say.Reservation | None:
            offset = buffer.leases.reserve(worker, request)
            return None if offset is None else say.Reservation(offset=offset)

        return buffer.monitor.poll(request, room, lambda: self._no_room(request))

    def _no_room(self, request: ask.ReserveLease) -> RLJobError:
        free = self._buffer.segments.memory.largest_free
        return DeadlineExceeded(
            f"no room for {request.num_bytes:,} bytes of rows after {request.waited:.1f} s, {free:,} are free: owners "
            "have not taken what was made before, or dataBuffer.memory is too small"
        )

    def _deliver_lease(self, caller: Identity, request: ask.DeliverLease) -> say.Done:
        self._buffer.leases.deliver(caller.worker, request)
        return say.Done()

    def _return_lease(self, caller: Identity, request: ask.ReturnLease) -> say.Done:
        self._buffer.leases.give_back(caller.worker)
        return say.Done()

    def _request_stop(self, caller: Identity, request: ask.RequestStop) -> say.Done:
        self._buffer.leases.stop()
        return say.Done()

    def _drain(self, caller: Identity, request: ask.Drain) -> say.Done | say.NotYet:
        buffer = self._buffer
        is_drained = buffer.monitor.wait(lambda: buffer.leases.is_drained() or None, request.held_seconds)
        if is_drained and buffer.links.flush(request.held_seconds):
            buffer.links.check_delivered()
            return say.Done()
        if request.waited < request.seconds:
            return say.NotYet()
        raise DeadlineExceeded(f"{caller.worker} waited {request.waited:.1f} s for owners to take what it made")

    # ---- weights

    def _next_chunk(self, caller: Identity, request: ask.NextChunk) -> say.WorkerAnswer:
        buffer, worker = self._buffer, caller.worker
        buffer.weights.want(worker, request)
        return buffer.monitor.poll(request, lambda: buffer.weights.next(worker, request), lambda: self._late(request))

    def _late(self, request: ask.NextChunk) -> RLJobError:
        return DeadlineExceeded(f"waited {request.waited:.1f} s for {self._buffer.weights.explain(request)}")

    def _release_chunk(self, caller: Identity, request: ask.ReleaseChunk) -> say.Done:
        return say.Done()

    def _skip_version(self, caller: Identity, request: ask.SkipVersion) -> say.Done:
        self._buffer.weights.skip(caller.worker, request)
        return say.Done()


_HEARS: Mapping[type, Callable[[GuestBuffer, Host, Any], None]] = {
    peers.LeaseAssigned: lambda guest, *said: guest.leases.hear_assigned(*said),
    peers.LeaseTaken: lambda guest, *said: guest.leases.hear_taken(*said),
    peers.ParentNamed: lambda guest, *said: guest.weights.hear_parent(*said),
    **dict.fromkeys(get_args(peers.WeightsMessage), lambda guest, *said: guest.weights.announced(*said)),
    peers.Broken: GuestBuffer._broken,
    peers.Departure: GuestBuffer._left,
}

_ANSWERS: Mapping[type, Callable[[GuestSide, Identity, Any], Any]] = {
    ask.WorkerHello: GuestSide._hello,
    ask.SetStatus: GuestSide._set_status,
    ask.AskStatus: GuestSide._ask_status,
    ask.RequestLease: GuestSide._request_lease,
    ask.ReserveLease: GuestSide._reserve_lease,
    ask.DeliverLease: GuestSide._deliver_lease,
    ask.ReturnLease: GuestSide._return_lease,
    ask.RequestStop: GuestSide._request_stop,
    ask.Drain: GuestSide._drain,
    ask.NextChunk: GuestSide._next_chunk,
    ask.ReleaseChunk: GuestSide._release_chunk,
    ask.SkipVersion: GuestSide._skip_version,
}
