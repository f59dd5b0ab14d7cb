"""All links of this data buffer: messages, questions and streams, and which peers are lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rljob_worker.databuffer.links.address_book import AddressBook
from rljob_worker.databuffer.links.connection import MAX_BYTES, PeerConnection, ask_all
from rljob_worker.databuffer.links.fencing import Identity
from rljob_worker.databuffer.links.link import (
    PING_SECONDS,
    Effect,
    Hears,
    LinkLost,
    MessageReceiver,
    StartCall,
    Wait,
    size_of,
)
from rljob_worker.databuffer.links.message_calls import CALL_SECONDS, MessageCalls
from rljob_worker.databuffer.links.peer import Peer, PeerLimits
from rljob_worker.databuffer.protocol.codec import encode
from rljob_worker.databuffer.protocol.errors import Away, Bug, Elsewhere, Malformed
from rljob_worker.databuffer.protocol.peer_side import Envelope, PeerAnswer, PeerMessage, Question, Take, Ticket
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.work import THREADS, Fails, Threads, Timer
from rljob_worker.errors import PeerLost, RLJobError

if TYPE_CHECKING:
    from rljob_worker.databuffer.links.credentials import TlsCredentials

SWEEP_SECONDS = 0.5

Connects = Callable[[Host, AddressBook, Identity, str, Callable[[], float], "TlsCredentials | None"], PeerConnection]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """Who a data buffer is to its peers, how it reaches them, and how long it waits for them."""

    address_book: AddressBook
    identity: Identity
    retry_seconds: float
    """How long a peer that has answered before may be away."""
    start_seconds: float
    """How long one that never has may be away: pods do not start together."""
    call_seconds: float = CALL_SECONDS
    credentials: TlsCredentials | None = None
    """For mutual TLS; None speaks plain text."""
    threads: Threads = THREADS
    """Time and background work, of which a simulation has its own."""
    connects: Connects = PeerConnection
    """Makes the way to a peer."""


class Links:
    """Speaks with the other data buffers.

    Only peers that are watched, and those with something to hear, are called, each by one call at a time. A call that
    ran out of time is repeated on threads of its own: peers that hang do not stop messages to the others.

    life: tells this process from one that takes its place.
    A *guest* is a peer that may come and go: its loss is an event, `guest_lost`, and another process may have its name
    after that. What a guest says that cannot be so ends its link, and nothing else.

    hears: gets every message of every peer, exactly once, those of one peer in order; from a thread of the server.
    lost: called once for a peer that restarted, refuses us, or has been away for longer than its window.
    fails: called with what `hears` raises, and of everything else that is not a peer's fault.
    is_guest: whether a peer may come and go. guest_lost: called with every loss of one, once.
    guest_ping_seconds: how long a guest may be silent before it is called.
    """

    def __init__(
        self,
        settings: LinkSettings,
        *,
        life: str,
        hears: Hears,
        lost: Callable[[Host, PeerLost], None],
        fails: Fails,
        timer: Timer,
        is_guest: Callable[[Host], bool] = lambda host: False,
        guest_lost: Callable[[Host, PeerLost], None] = lambda host, error: None,
        guest_ping_seconds: float = PING_SECONDS,
    ) -> None:
        self.is_guest, self._guest_lost = is_guest, guest_lost
        book, threads = settings.address_book, settings.threads
        self._limits = PeerLimits(is_guest, book, settings.retry_seconds, settings.start_seconds, guest_ping_seconds)
        self._address_book = book
        self._credentials = settings.credentials
        self._identity = settings.identity
        self._life = life
        self._receiver = MessageReceiver(hears, self._unheard)
        self._lost = lost
        self._fails = fails
        self._timer = timer
        self._threads, self._clock = threads, threads.clock
        self._connects = settings.connects
        self._changed = threads.condition()
        self._peers: dict[Host, Peer] = {}
        self._watched: dict[Host, None] = {}
        self._closed = False
        self._calls = MessageCalls(
            fails, threads, settings.call_seconds, self._envelope, self._carried, self._failed, self._give_up
        )
        timer.after(SWEEP_SECONDS, self._sweep)

    # ---- messages

    def send(self, host: Host, *messages: PeerMessage) -> None:
        """Queue messages, to leave together where they fit; never blocks. A peer that is lost gets none."""
        for message in messages:
            if size_of(message) > MAX_BYTES:
                raise Bug(
                    f"{type(message).__name__} to host {host} has {size_of(message):,} bytes, at most {MAX_BYTES:,}"
                )
        with self._changed:
            peer = self._peer(host)
            for message in messages:
                self._do(peer, peer.link.send(message))

    def watch(self, hosts: Iterable[Host]) -> None:
        """Call these whenever they have been silent, until they leave."""
        with self._changed:
            for host in hosts:
                self._watched[host] = None
                peer = self._peer(host)
                self._do(peer, peer.link.look_after(self._clock(), self._limits.ping_seconds(host)))

    def unwatch(self, host: Host) -> None:
        """Do not mind the silence of a peer any more."""
        with self._changed:
            self._watched.pop(host, None)

    @property
    def peers(self) -> list[Host]:
        """Everybody that was spoken with."""
        with self._changed:
            return list(self._peers)

    def has_left(self, host: Host) -> bool:
        """Whether the peer said that it ends."""
        with self._changed:
            return host in self._peers and self._peers[host].link.has_left

    def peer_leaves(self, host: Host, guest_left: Callable[[], None] = lambda: None) -> None:
        """The peer said that it ends: its silence means nothing from now on.

        guest_left: called where it is a guest, before its name is free: what the next process of that name says is not
        to be taken for what this one said.
        """
        with self._changed:
            peer = self._peer(host)
            peer.link.leave()
        if self.is_guest(host):
            guest_left()
            self._forget(peer)
        if peer.link.is_drained:
            peer.connection.close()

    def take(self, sender: Host, life: str, envelope: Envelope) -> str:
        """What a peer's link carried here; returns our life. Raises what is reported to the peer."""
        self._receiver.refuse_ended(sender, life)
        with self._changed:
            peer = self._peer(sender)
            if self.is_guest(sender) and self._receiver.is_of_another(sender, life):
                self._do(peer, peer.link.look_after(float("inf")))
                raise Elsewhere(
                    f"another data buffer of host {sender} is connected: two of one name are refused; this one may "
                    "come in its place once it is lost"
                )
            peer.link.hear(self._clock())
        try:
            peer.connection.expect(life)
        except PeerLost as error:
            self._give_up(peer, error)
            if self.is_guest(sender):  # the one before is lost by that: this one may try again
                raise Elsewhere(str(error)) from error
            raise
        try:
            self._receiver.take(sender, life, envelope)
        except PeerLost as error:
            self._give_up(peer, error)
            raise
        return self._life

    def end_guest(self, host: Host, error: PeerLost) -> None:
        """Give a guest up, as if it were lost."""
        with self._changed:
            peer = self._peers.get(host)
        if peer is not None:
            self._give_up(peer, error)

    def _unheard(self, sender: Host, error: RLJobError) -> None:
        """What handling a message raised: a guest hears of what it has said, everything else breaks the data plane."""
        if not self.is_guest(sender) or isinstance(error, Bug):
            self._fails(error)
            return
        raise error if isinstance(error, PeerLost) else Malformed(str(error))

    def flush(self, seconds: float) -> bool:
        """Wait until everything sent has arrived, except what was sent to peers that are lost; whether it has."""
        with self._changed:
            return self._changed.wait_for(self._is_drained, seconds)

    def check_delivered(self) -> None:
        """Raise why a peer is lost, except a guest: what was sent to it was dropped and counts as `drained`."""
        with self._changed:
            for peer in self._peers.values():
                if peer.cause is not None and not self.is_guest(peer.host):
                    raise type(peer.cause)(*peer.cause.args)

    def close(self) -> None:
        """Send nothing more."""
        with self._changed:
            self._closed = True
            peers = list(self._peers.values())
            for peer in peers:
                peer.link.end()
        self._calls.close()
        for peer in peers:
            peer.connection.close()

    # ---- questions and streams

    def ask(self, hosts: Sequence[Host], question: Question, seconds: float) -> dict[Host, PeerAnswer | PeerLost]:
        """What each peer answers, all asked at once and bounded in all by `seconds`: for error messages only."""
        with self._changed:
            connections = {host: self._peer(host).connection for host in hosts}
        return ask_all(connections, question, seconds, self._threads)

    def stream(self, host: Host, ticket: Ticket, seconds: float, take: Take) -> None:
        """Hand out what a peer has for a ticket, which may take up to `seconds` to the last byte; for a stream thread.

        Raises what the peer raised by name, also in the middle; Away when the same call may succeed in a moment. A peer
        that did not give it all is called at once: it is lost, or says that the data plane is broken, or goes on.
        """
        with self._changed:
            peer = self._peer(host)
            if peer.cause is not None:
                raise type(peer.cause)(*peer.cause.args)
        try:
            peer.connection.stream(encode(ticket), seconds, take)
        except PeerLost:
            with self._changed:
                self._do(peer, peer.link.look_after(float("inf")))
            raise

    # ---- what happens to a link

    def _peer(self, host: Host) -> Peer:
        assert host != self._identity.pod, "a data buffer does not call itself"
        if host not in self._peers:
            connection = self._connects(
                host, self._address_book, self._identity, self._life, self._clock, self._credentials
            )
            self._peers[host] = Peer(host, connection)
        return self._peers[host]

    def _do(self, peer: Peer, effect: Effect) -> None:
        match effect:
            case StartCall(suspect=suspect):
                self._calls.start(peer, suspect=suspect)
            case Wait(seconds=seconds):
                self._timer.after(seconds, lambda: self._due(peer))

    def _due(self, peer: Peer) -> None:
        with self._changed:
            self._do(peer, peer.link.due())

    def _sweep(self) -> None:
        with self._changed:
            if self._closed:
                return
            now = self._clock()
            for host in self._watched:
                peer = self._peers[host]
                self._do(peer, peer.link.look_after(now, self._limits.ping_seconds(host)))
        self._timer.after(SWEEP_SECONDS, self._sweep)

    def _envelope(self, peer: Peer) -> tuple[Envelope, int] | None:
        """What the call that starts now carries, and about how many bytes; None for a link that is over."""
        with self._changed:
            return None if peer.link.is_over else peer.link.envelope(self._clock())

    def _carried(self, peer: Peer) -> None:
        with self._changed:
            peer.has_answered = True
            self._do(peer, peer.link.carried(self._clock()))
            if peer.link.is_drained:
                self._changed.notify_all()

    def _failed(self, peer: Peer, error: Away) -> None:
        peer.connection.renew()
        with self._changed:
            now = self._clock()
            effect = peer.link.failed(now, self._limits.away_seconds(peer, error), timed_out=error.timed_out)
            self._do(peer, effect)
            heard = peer.link.heard
        if isinstance(effect, LinkLost):
            last = "it has never been heard" if heard is None else f"it was last heard {now - heard:.1f} s ago"
            # who is cut off finds all others away: the words name both ends
            by = f"by host {self._identity.pod}"
            self._give_up(peer, PeerLost(f"{error}; away for {now - effect.since:.1f} s, {last} {by}"))
        elif peer.link.is_over:
            self._end(peer)

    def _give_up(self, peer: Peer, error: RLJobError) -> None:
        """This peer will not do any more: nothing is sent, and those that need it are notified once."""
        with self._changed:
            is_known = self._closed or peer.link.has_left or peer.cause is not None
            if not is_known:
                peer.cause = error  # before its link ends, which drops what it has not got
                if self.is_guest(peer.host):
                    self._receiver.end(peer.host)
        self._end(peer)
        if is_known:
            return
        if self.is_guest(peer.host):
            self._guest_lost(peer.host, error if isinstance(error, PeerLost) else PeerLost(str(error)))
            self._forget(peer)  # not before: what its next life asks would be lost with what this one had
        elif isinstance(error, PeerLost):
            self._lost(peer.host, error)
        else:
            self._fails(error)

    def _forget(self, peer: Peer) -> None:
        """The name of a guest that is gone is free."""
        with self._changed:
            if self._peers.get(peer.host) is peer:
                del self._peers[peer.host]
                self._watched.pop(peer.host, None)
                self._receiver.forget(peer.host)

    def _end(self, peer: Peer) -> None:
        with self._changed:
            peer.link.end()
            self._changed.notify_all()
        peer.connection.close()

    def _is_drained(self) -> bool:
        return all(peer.link.is_drained for peer in self._peers.values())
