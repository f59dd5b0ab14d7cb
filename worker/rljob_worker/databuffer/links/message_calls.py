"""Calls that carry messages to peers, on threads of their own."""

from __future__ import annotations

from collections.abc import Callable

from rljob_worker.databuffer.links.peer import Peer, life_of
from rljob_worker.databuffer.protocol.codec import encode
from rljob_worker.databuffer.protocol.errors import Away
from rljob_worker.databuffer.protocol.peer_side import Envelope
from rljob_worker.databuffer.work import CallThreadPool, Fails, Threads
from rljob_worker.errors import RLJobError

CALL_SECONDS = 5.0
HURRIED_SECONDS = 0.5
BYTES_PER_SECOND = 10e6
"""How slow a peer may read an envelope."""
NUM_THREADS = 64
NUM_SUSPECT_THREADS = 16


class MessageCalls:
    """Those to peers whose last call ran out of time have threads apart: peers that hang do not stop messages to the
    others.

    envelope: what a call that starts now carries, and about how many bytes; None for a link that is over. carried,
    failed, refused: how a call ended.
    """

    def __init__(
        self,
        fails: Fails,
        threads: Threads,
        call_seconds: float,
        envelope: Callable[[Peer], tuple[Envelope, int] | None],
        carried: Callable[[Peer], None],
        failed: Callable[[Peer, Away], None],
        refused: Callable[[Peer, RLJobError], None],
    ) -> None:
        self._call_seconds, self._envelope = call_seconds, envelope
        self._carried, self._failed, self._refused = carried, failed, refused
        self._calls = CallThreadPool("messages", NUM_THREADS, fails, threads)
        self._suspects = CallThreadPool("messages-to-suspects", NUM_SUSPECT_THREADS, fails, threads)

    def start(self, peer: Peer, *, suspect: bool) -> None:
        pool = self._suspects if suspect else self._calls
        pool.submit(f"messages to host {peer.host}", lambda hurried: self._call(peer, hurried))

    def close(self) -> None:
        """Start no more."""
        self._calls.close()
        self._suspects.close()

    def _call(self, peer: Peer, hurried: bool) -> None:
        carries = self._envelope(peer)
        if carries is None:
            return
        envelope, num_bytes = carries
        seconds = (HURRIED_SECONDS if hurried else self._call_seconds) + num_bytes / BYTES_PER_SECOND
        try:
            life = peer.connection.act("deliver", encode(envelope), seconds)
            peer.connection.expect(life_of(life))
        except Away as error:
            self._failed(peer, error)
        except RLJobError as error:
            self._refused(peer, error)
        else:
            self._carried(peer)
