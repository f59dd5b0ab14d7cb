"""A peer as this end knows it, and how long it may be silent or away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rljob_worker.databuffer.links.address_book import AddressBook
from rljob_worker.databuffer.links.connection import PeerConnection
from rljob_worker.databuffer.links.link import PING_SECONDS, Link
from rljob_worker.databuffer.protocol.errors import Away, Elsewhere, Malformed
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.errors import RLJobError

GUEST_START_SECONDS = 60.0
"""How long a guest that has never answered may be away: its name may be new to the name servers."""
MAX_LIFE_BYTES = 100


class Peer:
    """Another data buffer, and the way to it."""

    def __init__(self, host: Host, connection: PeerConnection) -> None:
        self.host = host
        self.connection = connection
        self.link = Link()
        self.has_answered = False
        self.cause: RLJobError | None = None
        """Why it is lost."""


@dataclass(frozen=True, slots=True)
class PeerLimits:
    """Limits in seconds, which depend on whether a peer may come and go and whether it ever answered."""

    is_guest: Callable[[Host], bool]
    address_book: AddressBook
    retry_seconds: float
    """How long a peer that has answered before may be away."""
    start_seconds: float
    """How long one that has never answered may be away."""
    guest_ping_seconds: float

    def ping_seconds(self, host: Host) -> float:
        """How long a peer may be silent before it is called."""
        return self.guest_ping_seconds if self.is_guest(host) else PING_SECONDS

    def away_seconds(self, peer: Peer, error: Away) -> float:
        """How long a peer may be away. One that calls us may have a name that still leads elsewhere: then it counts
        only if it has answered."""
        if self.is_guest(peer.host) and not peer.has_answered:
            return min(self.start_seconds, GUEST_START_SECONDS)
        is_known = peer.has_answered if isinstance(error, Elsewhere) else peer.link.heard is not None
        return self.retry_seconds if is_known or self.address_book.lists_the_living else self.start_seconds


def life_of(answer: bytes) -> str:
    """What tells one data buffer from the next, as its answers have it. Raises Malformed."""
    if not 0 < len(answer) <= MAX_LIFE_BYTES or not answer.isascii():
        raise Malformed(f"{len(answer):,} bytes do not tell one data buffer from the next")
    return answer.decode()
