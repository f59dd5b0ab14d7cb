"""What a data buffer hears from the others, and gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

from rljob_worker.databuffer.leases.leases import Leases
from rljob_worker.databuffer.leases.owner import LeaseOwner
from rljob_worker.databuffer.links.faults import error_from
from rljob_worker.databuffer.links.links import Links
from rljob_worker.databuffer.protocol import peer_side as say
from rljob_worker.databuffer.protocol.errors import require
from rljob_worker.databuffer.protocol.peer_side import RecordStream
from rljob_worker.databuffer.pull.consuming import Consuming
from rljob_worker.databuffer.pull.edges import Edges
from rljob_worker.databuffer.pull.producing import Producing, layout_topic
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.routes.job_tree import REPORT, VALIDATION
from rljob_worker.databuffer.routes.lease_route import outcomes_topic
from rljob_worker.databuffer.rows import stream as rows
from rljob_worker.databuffer.rows.arrangement import Header
from rljob_worker.databuffer.rows.byte_stream import stream_of
from rljob_worker.databuffer.server.metrics import BufferMetrics
from rljob_worker.databuffer.server.readers import ReadableParts
from rljob_worker.databuffer.server.stragglers import WorkerStatuses
from rljob_worker.databuffer.store.monitor import Monitor
from rljob_worker.databuffer.tree import MessageTree
from rljob_worker.databuffer.weights.guest_parents import GuestParents
from rljob_worker.databuffer.weights.weights import Weights
from rljob_worker.errors import RLJobError


@dataclass(frozen=True, slots=True)
class PeerSide:
    """Messages, questions and streams of the other data buffers. Nothing here waits.

    Once the data plane is broken every call is answered with the first cause, which breaks the caller's as well.
    """

    here: Host
    first_worker: int
    """Number of the first worker of this host's group, among the workers of all groups."""
    monitor: Monitor
    links: Links
    worker_statuses: WorkerStatuses
    edges: Edges
    producing: Producing
    consuming: Consuming
    tree: MessageTree
    leases: Leases
    lease_owner: LeaseOwner | None
    """None where no guests are, and on hosts that own no leases of theirs."""
    guest_parents: GuestParents
    lose_guest: Callable[[Host, None], None]
    weights: Weights
    metrics: BufferMetrics
    break_down: Callable[[RLJobError], None]

    @property
    def readers(self) -> ReadableParts:
        return ReadableParts(self.edges, self.monitor)

    def hears(self, sender: Host, message: say.PeerMessage) -> None:
        """One message, in order; what it raises breaks the data plane."""
        _HEARS[type(message)](self, sender, message)

    def take(self, sender: Host, life: str, envelope: say.Envelope) -> str:
        own_life = self.links.take(sender, life, envelope)
        self.monitor.check()
        return own_life

    def answer(self, question: say.Question) -> say.PeerAnswer:
        """For the error message of somebody whose wait has run out."""
        self.monitor.check()
        if isinstance(question, say.WhatDoTheyDo):
            return {str(rank): self.worker_statuses.last_words(rank) for rank in self.worker_statuses.ranks()}
        if isinstance(question, say.WhatTheyPosted):
            return {str(rank): self.worker_statuses.status(rank) for rank in self.worker_statuses.ranks()}
        return self._missing(question.edge, question.step)

    def stream(self, ticket: say.Ticket) -> RecordStream:
        """What was offered."""
        self.monitor.check()
        if isinstance(ticket, say.ChunkTicket):
            return stream_of(self.weights.offered(ticket))
        require(isinstance(ticket, say.RowsTicket), f"host {self.here} makes no rows of leases")
        assert isinstance(ticket, say.RowsTicket)
        self._check_edge(ticket.edge)
        selections = self.producing.selections(ticket.edge, ticket.step, ticket.share)
        gathered = partial(self.metrics.gathered, ticket.edge)
        num_rows = sum(len(positions) for _, positions in selections)
        require(0 <= ticket.first <= ticket.stop <= num_rows, f"there are no rows {ticket.first} to {ticket.stop}")
        return rows.stream(selections, gathered, ticket.batch_bytes, ticket.first, ticket.stop)

    # ---- messages

    def _rows_offered(self, sender: Host, message: say.RowsOffered) -> None:
        self._check_edge(message.edge)
        with self.monitor.look():
            state = self.edges.at(message.edge, message.step)
        header = Header.from_bytes(message.header, message.kinds)
        self.consuming.offered(state, message.share, sender, header, message.rows)

    def _rows_taken(self, sender: Host, message: say.RowsTaken) -> None:
        self._check_edge(message.edge)
        self.producing.taken(sender, message)

    def _check_edge(self, edge: str) -> None:
        require(edge in self.edges.routes, f"this job has no edge {edge!r}")

    def _of_owner(self, sender: Host, message: say.GuestMessage) -> None:
        require(self.lease_owner is not None, f"host {self.here} owns no leases of guests")
        assert self.lease_owner is not None
        _OWNER_HEARS[type(message)](self.lease_owner, sender, message)

    def _parent_requested(self, sender: Host, message: say.ParentRequested) -> None:
        require(any(message.edge == name for name in self.weights.names), f"there are no weights {message.edge!r}")
        with self.monitor.change():
            parent = self.guest_parents.parent(message.edge, message.version, sender)
        self.links.send(sender, say.ParentNamed(message.edge, message.version, str(parent or "")))

    def _broken(self, sender: Host, message: say.Broken) -> None:
        if not self.links.is_guest(sender):  # what ends a guest ends nobody else
            self.break_down(error_from(message))

    def _peer_leaves(self, sender: Host, message: say.Departure) -> None:
        self.links.peer_leaves(sender, lambda: self.lose_guest(sender, None))

    # ---- who is missing

    def _missing(self, topic: str, step: int) -> say.PeerAnswer:
        """Who is missing. Edge: producers of this host; gathering: workers of this host, and hosts below."""
        if topic in self.edges.routes:
            with self.monitor.look():
                ranks = [self.edges.routes[topic].producer(part).rank for part in self._unsealed(topic, step)]
            return {"said": self._said(ranks), "below": []}
        members, hosts = self.tree.missing(topic, step)
        ranks = [self._rank_of(topic, member) for member in members]
        return {"said": self._said(ranks), "below": [str(host) for host in hosts]}

    def _unsealed(self, edge: str, step: int) -> list[int]:
        state = self.edges.find(edge, step)
        return list(self.edges.routes[edge].parts_on(self.here)) if state is None else state.unsealed

    def _rank_of(self, topic: str, member: int) -> int:
        if topic in (REPORT, VALIDATION):
            return member - self.first_worker
        for name, leased in self.leases.routes.items():
            if outcomes_topic(name) == topic:
                return leased.leader(member).rank
        route = next(route for name, route in self.edges.routes.items() if layout_topic(name) == topic)
        return route.producer(member).rank

    def _said(self, ranks: list[int]) -> dict[str, str]:
        return {f"rank {rank} of group {self.here.group}": self.worker_statuses.last_words(rank) for rank in ranks}


_HEARS: Mapping[type, Callable[[PeerSide, Host, Any], None]] = {
    say.RowsOffered: PeerSide._rows_offered,
    say.RowsTaken: PeerSide._rows_taken,
    say.Up: lambda side, *said: side.tree.hear_up(*said),
    say.Down: lambda side, *said: side.tree.hear_down(*said),
    **dict.fromkeys(get_args(say.WeightsMessage), lambda side, *said: side.weights.announced(*said)),
    say.LeaseAsked: lambda side, *said: side.leases.hear_asked(*said),
    say.LeaseGranted: lambda side, *said: side.leases.hear_granted(*said),
    say.GuestHello: PeerSide._of_owner,
    say.LeaseRequested: PeerSide._of_owner,
    say.LeaseReturned: PeerSide._of_owner,
    say.LeaseDelivered: PeerSide._of_owner,
    say.LeasesFree: PeerSide._of_owner,
    say.GuestLost: PeerSide._of_owner,
    say.ParentRequested: PeerSide._parent_requested,
    say.Broken: PeerSide._broken,
    say.Departure: PeerSide._peer_leaves,
}

_OWNER_HEARS: Mapping[type, Callable[[LeaseOwner, Host, Any], None]] = {
    say.GuestHello: LeaseOwner.hear_hello,
    say.LeaseRequested: LeaseOwner.hear_requested,
    say.LeaseReturned: LeaseOwner.hear_returned,
    say.LeaseDelivered: LeaseOwner.hear_delivered,
    say.LeasesFree: LeaseOwner.hear_free,
    say.GuestLost: LeaseOwner.hear_lost,
}
